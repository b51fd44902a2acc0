#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace reprise {
namespace {

using testing::HasSubstr;

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() {
    std::string name = (std::filesystem::temp_directory_path() / "reprise-map-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~MappedFileTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }
  static Error error_of(const std::string& path) {
    const auto file = MappedFile::open(path);
    EXPECT_FALSE(file) << path;
    return file ? Error{} : file.error();
  }

  std::string folder_;
};

TEST_F(MappedFileTest, HoldsTheFile) {
  const std::string text("some\0bytes", 10);
  const auto file = MappedFile::open(write("file", text));
  ASSERT_TRUE(file);
  EXPECT_EQ(text_of(*file), text);
  EXPECT_EQ(file->path(), path("file"));
}

TEST_F(MappedFileTest, OutlivesTheNameOfItsFile) {
  const auto file = MappedFile::open(write("file", "text"));
  ASSERT_TRUE(file);
  std::filesystem::remove(path("file"));
  EXPECT_EQ(text_of(*file), "text");
}

TEST_F(MappedFileTest, Missing) {
  const Error error = error_of(path("none"));
  EXPECT_EQ(error.code, ErrorCode::kFileNotFound);
  EXPECT_THAT(error.message, HasSubstr(path("none")));
  EXPECT_EQ(error_of("").code, ErrorCode::kFileNotFound);
}

TEST_F(MappedFileTest, WhatIsNotARegularFileIsRefused) {
  EXPECT_EQ(error_of(folder_).code, ErrorCode::kFileUnreadable);
  EXPECT_THAT(error_of(folder_).message, HasSubstr("not a regular file"));
  EXPECT_EQ(error_of("/dev/null").code, ErrorCode::kFileUnreadable);
  EXPECT_EQ(error_of(write("file", "x") + "/below").code, ErrorCode::kFileUnreadable);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of(path("pipe")).code, ErrorCode::kFileUnreadable);  // and does not wait for it
}

TEST_F(MappedFileTest, Empty) {
  const auto file = MappedFile::open(write("file", ""));
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, Moves) {
  auto first = MappedFile::open(write("first", "1st"));
  auto second = MappedFile::open(write("second", "2nd"));
  ASSERT_TRUE(first && second);
  const std::byte* const where = first->bytes().data();
  MappedFile moved = std::move(*first);
  EXPECT_EQ(moved.bytes().data(), where);
  EXPECT_TRUE(first->bytes().empty());
  moved = std::move(*second);
  EXPECT_EQ(text_of(moved), "2nd");
  EXPECT_EQ(moved.path(), path("second"));
}

TEST_F(MappedFileTest, ReleasedPagesAreReadAgain) {
  const std::string text(100000, 'r');
  const auto file = MappedFile::open(write("file", text));
  ASSERT_TRUE(file);
  EXPECT_EQ(text_of(*file), text);
  file->release(file->bytes());
  file->release(file->bytes().subspan(5000, 10));  // less than a page: nothing to give back
  file->release({});
  EXPECT_EQ(text_of(*file), text);
}

}  // namespace
}  // namespace reprise

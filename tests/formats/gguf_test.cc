#include "formats/gguf.h"

#include <gtest/gtest.h>

#include "formats/gguf_builder.h"
#include "formats/safetensors_builder.h"

namespace reprise::test {
namespace {

template <class T>
T value(const GgufFile& file, std::string_view key) {
  const GgufValue* found = file.find(key);
  const T* typed = found == nullptr ? nullptr : std::get_if<T>(found);
  EXPECT_NE(typed, nullptr) << key;
  return typed == nullptr ? T{} : *typed;
}

TEST(Gguf, ReadsEveryKindOfValue) {
  const std::string bytes = small_gguf().build();
  const auto file = GgufFile::parse(as_bytes(bytes), "small");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(value<uint64_t>(*file, "a.u8"), 200u);
  EXPECT_EQ(value<int64_t>(*file, "a.i8"), -3);
  EXPECT_EQ(value<uint64_t>(*file, "a.u16"), 60000u);
  EXPECT_EQ(value<int64_t>(*file, "a.i16"), -300);
  EXPECT_EQ(value<uint64_t>(*file, "a.u32"), 4000000000u);
  EXPECT_EQ(value<int64_t>(*file, "a.i32"), -70000);
  EXPECT_EQ(value<uint64_t>(*file, "a.u64"), uint64_t{1} << 40);
  EXPECT_EQ(value<int64_t>(*file, "a.i64"), -(int64_t{1} << 40));
  EXPECT_EQ(value<double>(*file, "a.f32"), 1.5);
  EXPECT_EQ(value<double>(*file, "a.f64"), 0.25);
  EXPECT_TRUE(value<bool>(*file, "a.bool"));
  EXPECT_EQ(value<std::string_view>(*file, "general.name"), "small");
  EXPECT_EQ(value<std::vector<int64_t>>(*file, "a.ints"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(value<std::vector<double>>(*file, "a.floats"), (std::vector<double>{0.5, -1}));
  EXPECT_EQ(value<std::vector<bool>>(*file, "a.bools"), (std::vector<bool>{true, false}));
  EXPECT_EQ(value<std::vector<std::string_view>>(*file, "tokenizer.ggml.merges"),
            (std::vector<std::string_view>{"a b"}));
  EXPECT_EQ(file->find("a.none"), nullptr);
}

TEST(Gguf, ShapesAreRowMajorAndBytesAreThere) {
  const std::string bytes = small_gguf().build();
  const auto file = GgufFile::parse(as_bytes(bytes), "small");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 2u);
  const TensorView* weight = file->tensor("weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->type, TensorType::kF32);
  EXPECT_EQ(weight->shape, (std::vector<uint64_t>{2, 3}));
  ASSERT_EQ(weight->bytes.size(), 24u);
  for (int i = 0; i < 6; ++i) {
    float element = 0;
    std::memcpy(&element, weight->bytes.data() + 4 * i, 4);
    EXPECT_EQ(element, static_cast<float>(i));
  }
  const TensorView* blocks = file->tensor("blocks");
  ASSERT_NE(blocks, nullptr);
  EXPECT_EQ(blocks->bytes.size(), 40u);  // two rows of one Q4_1 block
  EXPECT_EQ(std::to_integer<int>(blocks->bytes[39]), 0x11);
  EXPECT_EQ(file->tensor("other"), nullptr);
}

TEST(Gguf, TypedAccessConvertsIntegersAndNothingElse) {
  const std::string bytes = small_gguf().build();
  const auto file = GgufFile::parse(as_bytes(bytes), "small");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->get_uint("a.u8").value(), 200u);
  EXPECT_EQ(file->get_uint("a.i8").error().code, ErrorCode::kBadType);  // negative
  EXPECT_EQ(file->get_uint("a.f32").error().code, ErrorCode::kBadType);
  EXPECT_EQ(file->get_uint("a.none").error().code, ErrorCode::kMissingKey);
  EXPECT_EQ(file->get_float("a.f32").value(), 1.5);
  EXPECT_EQ(file->get_float("a.u8").error().code, ErrorCode::kBadType);
  EXPECT_TRUE(file->get_bool("a.bool").value());
  EXPECT_EQ(file->get_bool("a.u8").error().code, ErrorCode::kBadType);
  EXPECT_EQ(file->get_string("general.architecture").value(), "llama");
  EXPECT_EQ(file->get_string("a.bool").error().code, ErrorCode::kBadType);
  const auto positive = GgufBuilder().add("n", 7).build();
  const auto signed_file = GgufFile::parse(as_bytes(positive), "n");
  EXPECT_EQ(signed_file->get_uint("n").value(), 7u);
}

TEST(Gguf, ReadsVersion2AndOtherAlignments) {
  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    const auto bytes = GgufBuilder()
                           .version(2)
                           .alignment(alignment)
                           .tensor("a", {1}, {1.0f})
                           .tensor("b", {1}, {2.0f})
                           .build();
    const auto file = GgufFile::parse(as_bytes(bytes), "aligned");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->version(), 2u);
    const auto begin = file->tensor("b")->bytes.data() - as_bytes(bytes).data();
    EXPECT_EQ(begin % alignment, 0);
    float element = 0;
    std::memcpy(&element, file->tensor("b")->bytes.data(), 4);
    EXPECT_EQ(element, 2.0f);
  }
}

TEST(Gguf, OpensAFileAndOutlivesAMove) {
  const TempFolder folder;
  const std::string path = folder.path() + "/small.gguf";
  small_gguf().write(path);
  auto opened = GgufFile::open(path);
  ASSERT_TRUE(opened) << opened.error().message;
  const GgufFile file = std::move(*opened);
  EXPECT_EQ(file.name(), path);
  EXPECT_EQ(file.get_string("general.name").value(), "small");
  EXPECT_EQ(file.tensor("weight")->bytes.size(), 24u);
}

TEST(Gguf, ReportsPathsThatAreNoFiles) {
  const TempFolder folder;
  EXPECT_EQ(GgufFile::open(folder.path() + "/none").error().code, ErrorCode::kFileNotFound);
  EXPECT_EQ(GgufFile::open(folder.path()).error().code, ErrorCode::kFileUnreadable);
}

TEST(Gguf, MessagesEscapeWhatTheFileHolds) {
  const auto bytes = GgufBuilder().add("k\n\x1b[2J", 1u).add("k\n\x1b[2J", 2u).build();
  const auto file = GgufFile::parse(as_bytes(bytes), "file");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().message, "file: metadata key 'k\\x0a\\x1b[2J' appears twice");
}

}  // namespace
}  // namespace reprise::test

#include "formats/bad_files.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>

namespace reprise::test {
namespace {

std::vector<BadFile> all_bad_files() {
  std::vector<BadFile> all;
  for (auto* list : {bad_gguf_headers, bad_gguf_tensors, bad_gguf_tokenizers, bad_safetensors,
                     bad_folders, bad_tokenizer_json, bad_sentencepiece}) {
    for (BadFile& file : list()) all.push_back(std::move(file));
  }
  return all;
}

class MalformedFile : public testing::TestWithParam<BadFile> {};

TEST_P(MalformedFile, IsRefusedWithItsCode) {
  const BadFile& file = GetParam();
  const Status status = file.parse();
  ASSERT_FALSE(status) << "was accepted";
  const std::string& message = status.error().message;
  EXPECT_EQ(error_name(status.error().code), error_name(file.code)) << message;
  EXPECT_NE(message.find(file.mention), std::string::npos) << message;
  EXPECT_EQ(message.find_first_of("\n\r"), std::string::npos) << message;
  EXPECT_LT(message.size(), 1000u) << message;
}

INSTANTIATE_TEST_SUITE_P(Named, MalformedFile, testing::ValuesIn(all_bad_files()),
                         [](const auto& param) { return param.param.name; });

TEST(MalformedFiles, AreManyAndDistinct) {
  std::set<std::string> names;
  for (const BadFile& file : all_bad_files()) {
    EXPECT_TRUE(names.insert(file.name).second) << file.name;
  }
  EXPECT_GE(names.size(), 150u);
  std::printf("named malformed files: %zu\n", names.size());
}

}  // namespace
}  // namespace reprise::test

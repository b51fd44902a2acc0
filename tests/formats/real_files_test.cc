// Files of real models, where they are at hand.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "formats/gguf.h"
#include "formats/tokenizer_data.h"

namespace reprise::test {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

std::string default_model() {
  if (const auto path = environment("REPRISE_MODEL"); !path.empty()) return path;
  const auto cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? environment("HOME") + "/.cache" : cache) +
         "/reprise/SmolLM2-135M-Instruct.Q4_1.gguf";
}

TEST(RealFiles, DefaultModelLoads) {
  const std::string path = default_model();
  if (!fs::exists(path)) GTEST_SKIP() << "no model at " << path << "; set REPRISE_MODEL";
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file) << file.error().message;
  if (file->get_string("general.basename").value_or("") != "smollm2") {
    GTEST_SKIP() << "REPRISE_MODEL is another model";
  }
  EXPECT_EQ(file->tensors().size(), 272u);
  const TensorView* embedding = file->tensor("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->type, TensorType::kQ8_0);
  EXPECT_EQ(embedding->shape, (std::vector<uint64_t>{49152, 576}));
  const auto tokenizer = read_gguf_tokenizer(*file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->tokens.size(), 49152u);
  EXPECT_EQ(tokenizer->merges.size(), 48900u);
  EXPECT_EQ(tokenizer->gguf_pre, "smollm");
  EXPECT_EQ(tokenizer->eos, 2);
  EXPECT_FALSE(tokenizer->add_bos);
  EXPECT_FALSE(tokenizer->chat_template.empty());
}

TEST(RealFiles, VocabulariesLoad) {
  const std::string folder = environment("REPRISE_DATA") + "/tokenizers";
  if (!fs::is_directory(folder)) GTEST_SKIP() << "set REPRISE_DATA to a folder with tokenizers/";
  int read = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    const auto file = GgufFile::open(entry.path().string());
    ASSERT_TRUE(file) << file.error().message;
    const auto tokenizer = read_gguf_tokenizer(*file);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_GT(tokenizer->tokens.size(), 30000u) << entry.path();
    ++read;
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace reprise::test

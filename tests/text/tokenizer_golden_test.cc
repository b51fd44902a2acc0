// Ids against the reference libraries; see tests/oracle/make_tokenizer_goldens.py.
#include <gmock/gmock.h>

#include "base/data_folder.h"
#include "text/tokenizer_fixtures.h"

namespace reprise {
namespace {

using Ids = std::vector<int32_t>;

void expect_goldens(const Tokenizer& tokenizer, const nlohmann::json& texts,
                    const nlohmann::json& cases) {
  ASSERT_EQ(texts.size(), cases.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (cases[i].empty()) continue;  // the reference is wrong there
    const auto text = texts[i].get<std::string>();
    const Ids plain = cases[i].at("plain").get<Ids>();
    EXPECT_EQ(tokenizer.encode(text, {.add_special = false}), plain)
        << "case " << i << ": " << text;
    const Ids parsed = cases[i].value("parsed", plain);
    EXPECT_EQ(tokenizer.encode(text, {.parse_special = true}), parsed)
        << "case " << i << " with special tokens: " << text;
  }
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, IdsAgree) {
  const auto tokenizer = fixture_tokenizer(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const auto goldens = read_goldens("goldens.json");
  expect_goldens(*tokenizer, goldens.at("texts"), goldens.at("tokenizers").at(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, Golden,
                         testing::Values("gpt2.json", "llama3.json", "qwen2.json", "falcon.json",
                                         "deepseek.json", "llama2.json", "gemma.json", "mixed.json",
                                         "unigram.json"));

// sentencepiece adds no BOS by itself, so only plain ids are recorded.
TEST(SentencePieceGolden, IdsAgree) {
  const auto goldens = read_goldens("goldens.json");
  for (const std::string name : {"spm_bpe.model", "spm_unigram.model"}) {
    const auto tokenizer = fixture_tokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    const auto& cases = goldens.at("tokenizers").at(name);
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto text = goldens.at("texts")[i].get<std::string>();
      EXPECT_EQ(tokenizer->encode(text, {.add_special = false}), cases[i].at("plain").get<Ids>())
          << name << " case " << i << ": " << text;
    }
  }
}

TEST(SmolLm2Golden, IdsAgreeWithLlamaCpp) {
  const std::string path = smollm2_path();
  if (path.empty()) GTEST_SKIP() << "the default model is not here; run the set-up";
  const auto tokenizer = gguf_tokenizer(path);
  ASSERT_NE(tokenizer, nullptr);
  const auto goldens = read_goldens("smollm2.json");
  expect_goldens(*tokenizer, goldens.at("texts"), goldens.at("cases"));
  for (const auto& text : goldens.at("texts")) {
    const auto ids = tokenizer->encode(text.get<std::string>(), {.add_special = false});
    EXPECT_EQ(tokenizer->decode(ids), text.get<std::string>());
  }
}

// Vocabulary files of real models with texts (.inp) and their ids (.out).
class Vocabulary : public testing::TestWithParam<const char*> {};

TEST_P(Vocabulary, IdsAgreeAndTextsComeBack) {
  const char* folder = test::data_folder();
  if (folder == nullptr) GTEST_SKIP() << "set REPRISE_DATA to the folder with tokenizers/*.gguf";
  const std::string path = std::string(folder) + "/tokenizers/ggml-vocab-" + GetParam() + ".gguf";
  const auto tokenizer = gguf_tokenizer(path);
  ASSERT_NE(tokenizer, nullptr);
  const std::string texts = read_all(path + ".inp");
  std::istringstream lines(read_all(path + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  size_t at = 0, cases = 0;
  for (std::string line; at <= texts.size() && std::getline(lines, line); ++cases) {
    const size_t end = std::min(texts.find(separator, at), texts.size());
    const std::string text = texts.substr(at, end - at);
    at = end + separator.size();
    std::istringstream numbers(line);
    const Ids expected{std::istream_iterator<int32_t>(numbers), {}};
    const Ids ids = tokenizer->encode(text, {.add_special = false});
    EXPECT_EQ(ids, expected) << text;
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
  EXPECT_EQ(cases, 46u);
}

INSTANTIATE_TEST_SUITE_P(Real, Vocabulary,
                         testing::Values("deepseek-coder", "gpt-2", "llama-bpe", "llama-spm",
                                         "phi-3", "qwen2", "starcoder"));

}  // namespace
}  // namespace reprise

// Work grows with the text's length, whatever the text; counted, not timed.
#include <gmock/gmock.h>

#include "text/subword_model.h"
#include "text/tokenizer_fixtures.h"

namespace reprise {
namespace {

constexpr size_t kKib = 1024, kMib = 1024 * 1024;

uint64_t steps_of(const SubwordModel& model, const std::string& word) {
  SubwordScratch scratch;
  std::vector<int32_t> ids;
  model.encode(word, scratch, ids);
  return scratch.steps;
}

std::string repeated(std::string_view part, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += part;
  return text;
}

// A merge removes a symbol and offers at most two new candidates, so 3 n bounds the work.
TEST(LinearTime, MergingOneLongWordTakesThreeStepsAByteAtMost) {
  TokenizerData data = tiny_byte_bpe({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}, {"a", "b"}});
  const auto ranked = make_ranked_bpe(data, true);
  TokenizerData scored;
  scored.model = TokenizerModel::kSentencePieceBpe;
  scored.tokens = {"a", "b", "aa", "ab", "aaaa", "abab"};
  scored.scores = {-9, -9, -1, -2, -3, -4};
  scored.kinds.assign(6, TokenKind::kNormal);
  const auto by_score = make_score_bpe(scored);
  for (const SubwordModel* model : {ranked.get(), by_score.get()}) {
    for (const std::string_view part : {"a", "ab", "aab", "xyz"}) {
      for (const size_t bytes : {64 * kKib, kMib}) {
        const std::string word = repeated(part, bytes);
        EXPECT_LE(steps_of(*model, word), 4 * word.size()) << part << " " << bytes;
      }
    }
  }
}

TEST(LinearTime, ViterbiOffersEachPieceOnceAPlace) {
  TokenizerData data;
  data.model = TokenizerModel::kUnigram;
  data.tokens = {"a", "aa", "aaa", "aaaa", "b"};
  data.scores = {-1, -2, -3, -4, -5};
  data.kinds.assign(5, TokenKind::kNormal);
  const auto model = make_unigram(data);
  EXPECT_LE(steps_of(*model, std::string(64 * kKib, 'a')), 4 * 64 * kKib);
  EXPECT_LE(steps_of(*model, std::string(kMib, 'a')), 4 * kMib);
}

class LongText : public testing::TestWithParam<const char*> {
 protected:
  void expect_back(std::string_view part, size_t bytes) const {
    const std::string text = repeated(part, bytes);
    const auto ids = tokenizer_->encode(text, {.add_special = false});
    EXPECT_FALSE(ids.empty());
    EXPECT_TRUE(tokenizer_->decode(ids) == text) << part;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = fixture_tokenizer(GetParam());
};

TEST_P(LongText, OneMebibyteOfAnythingComesBack) {
  for (const std::string_view part : {" ", "\n ", "1", "<|im_start|>", "\xff", "e\u0301", "A1"}) {
    expect_back(part, kMib);
  }
}

TEST_P(LongText, TenMebibytesComeBack) {
  expect_back("it was the best of times, ", 10 * kMib);
  expect_back("a", 10 * kMib);
}

INSTANTIATE_TEST_SUITE_P(EveryModel, LongText, testing::Values("llama3.json", "spm_bpe.model"));

// Reordering combining marks is quadratic in their number unless it is bounded.
TEST(LinearTime, ManyCombiningMarksAreNormalised) {
  const auto tokenizer = fixture_tokenizer("qwen2.json");
  const std::string text = "a" + repeated("\u0301\u0316", kMib);
  EXPECT_FALSE(tokenizer->encode(text).empty());
}

}  // namespace
}  // namespace reprise

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "text/tokenizer_fixtures.h"

namespace reprise {
namespace {

using testing::ElementsAre;

// Pieces with scores; ids follow the order, after <unk> and, if wanted, 256 byte tokens.
TokenizerData pieces(TokenizerModel model, bool bytes,
                     const std::vector<std::pair<std::string, float>>& list) {
  TokenizerData data;
  data.model = model;
  data.unknown = 0;
  const auto add = [&](const std::string& text, float score, TokenKind kind) {
    data.tokens.push_back(text);
    data.scores.push_back(score);
    data.kinds.push_back(kind);
  };
  add("<unk>", 0, TokenKind::kUnknown);
  for (const auto& [text, score] : list) add(text, score, TokenKind::kNormal);
  for (int byte = 0; bytes && byte < 256; ++byte) {
    add(fmt::format("<0x{:02X}>", byte), 0, TokenKind::kByte);
  }
  data.byte_fallback = bytes;
  return data;
}

TEST(ScoreBpe, MergesTheBestScoreFirst) {
  auto data =
      pieces(TokenizerModel::kSentencePieceBpe, false,
             {{"▁", -9}, {"a", -9}, {"b", -9}, {"c", -9}, {"ab", -2}, {"bc", -1}, {"▁a", -3}});
  EXPECT_THAT(make_tokenizer(data)->encode("abc"), ElementsAre(7, 6));
  data.add_space_prefix = false;
  EXPECT_THAT(make_tokenizer(data)->encode("abc"), ElementsAre(2, 6));
  EXPECT_THAT(make_tokenizer(data)->encode("ab c"), ElementsAre(5, 1, 4));
}

TEST(ScoreBpe, MergesCharactersThatAreNoPiecesThemselves) {
  const auto data =
      pieces(TokenizerModel::kSentencePieceBpe, true, {{"▁", -9}, {"xy", -1}, {"xyz", -2}});
  const auto tokenizer = make_tokenizer(data);
  EXPECT_THAT(tokenizer->encode("xyz"), ElementsAre(1, 3));
  EXPECT_THAT(tokenizer->encode("x"), ElementsAre(1, 4 + 'x'));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("zyx")), "zyx");
}

TEST(ScoreBpe, UnknownCharactersBecomeBytesOrOneUnknownToken) {
  const std::vector<std::pair<std::string, float>> list{{"▁", -9}, {"a", -9}};
  const auto with = make_tokenizer(pieces(TokenizerModel::kSentencePieceBpe, true, list));
  EXPECT_THAT(with->encode("aé"), ElementsAre(1, 2, 3 + 0xC3, 3 + 0xA9));
  const auto without = make_tokenizer(pieces(TokenizerModel::kSentencePieceBpe, false, list));
  EXPECT_THAT(without->encode("aéöa"), ElementsAre(1, 2, 0, 2));
}

TEST(Unigram, TakesTheLikeliestSegmentation) {
  const auto data = pieces(TokenizerModel::kUnigram, false,
                           {{"▁", -2}, {"a", -3}, {"b", -3}, {"ab", -4}, {"ba", -7}, {"aba", -9}});
  EXPECT_THAT(make_tokenizer(data)->encode("aba"), ElementsAre(1, 4, 2))
      << "-4-3 beats -9 and -3-7";
}

TEST(Unigram, UnknownCharactersBecomeBytesOrOneUnknownToken) {
  const std::vector<std::pair<std::string, float>> list{{"▁", -2}, {"a", -3}};
  const auto with = make_tokenizer(pieces(TokenizerModel::kUnigram, true, list));
  EXPECT_THAT(with->encode("é"), ElementsAre(1, 3 + 0xC3, 3 + 0xA9));
  const auto without = make_tokenizer(pieces(TokenizerModel::kUnigram, false, list));
  EXPECT_THAT(without->encode("aéöa"), ElementsAre(1, 2, 0, 2));
}

TEST(SentencePiece, BrokenBytesAreKeptOrReplaced) {
  for (const auto model : {TokenizerModel::kSentencePieceBpe, TokenizerModel::kUnigram}) {
    const std::vector<std::pair<std::string, float>> list{{"▁", -2}, {"a", -3}, {"\uFFFD", -3}};
    const auto with = make_tokenizer(pieces(model, true, list));
    EXPECT_THAT(with->encode("a\xff\xe2\x96 a"),
                ElementsAre(1, 2, 4 + 0xFF, 4 + 0xE2, 4 + 0x96, 1, 2));
    const auto without = make_tokenizer(pieces(model, false, list));
    EXPECT_THAT(without->encode("a\xff\xe2\x96"), ElementsAre(1, 2, 3, 3));
  }
}

TEST(SentencePiece, ExtraSpacesGoWhereTheModelSaysSo) {
  auto data = pieces(TokenizerModel::kUnigram, false, {{"▁", -2}, {"a", -3}});
  data.remove_extra_whitespaces = true;
  EXPECT_THAT(make_tokenizer(data)->encode("  a   a  "), ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(make_tokenizer(data)->encode("   "), ElementsAre());
}

TEST(SentencePiece, RefusesMissingScores) {
  auto data = pieces(TokenizerModel::kUnigram, false, {{"a", -3}});
  data.scores.clear();
  const auto result = Tokenizer::create(data);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kBadCount);
}

RC_GTEST_PROP(SentencePiece, AnyBytesComeBackWithByteTokens, ()) {
  static const auto bpe = fixture_tokenizer("llama2.json");
  static const auto score_bpe = fixture_tokenizer("spm_bpe.model");
  const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "was", " ", "it", "\n", "é", "语", "😀", "\xff", "\xe2\x96", "<tool_call>", "<s>", "<0x41>"));
  std::string text;
  for (const std::string& part : parts) text += part;
  RC_ASSERT(score_bpe->decode(score_bpe->encode(text)) == text);
  RC_ASSERT(bpe->decode(bpe->encode(text)) == text);
}

}  // namespace
}  // namespace reprise

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "text/tokenizer_fixtures.h"

namespace reprise {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

constexpr EncodeOptions kParse{.parse_special = true};

TEST(AddedTokens, SpecialOnesAreTextUnlessAskedFor) {
  TokenizerData data = tiny_byte_bpe({});
  const int32_t end = add_token(data, "<|end|>", true);
  const auto tokenizer = make_tokenizer(data);
  EXPECT_THAT(tokenizer->encode("a<|end|>b"), Not(Contains(end)));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a<|end|>b")), "a<|end|>b");
  EXPECT_THAT(tokenizer->encode("a<|end|>b", kParse), ElementsAre('a', end, 'b'));
}

TEST(AddedTokens, NoMergeSpellsASpecialToken) {
  TokenizerData data = tiny_byte_bpe({{"<", "s"}, {"<s", ">"}});
  data.kinds.back() = TokenKind::kControl;  // "<s>"
  data.ignore_merges = true;
  EXPECT_THAT(make_tokenizer(data)->encode("<s>"), Not(Contains(257)));
}

TEST(AddedTokens, OthersAlwaysMatchAndTheLongestWins) {
  TokenizerData data = tiny_byte_bpe({});
  const int32_t two = add_token(data, "  ", false);
  const int32_t four = add_token(data, "    ", false);
  EXPECT_THAT(make_tokenizer(data)->encode("x       y"), ElementsAre('x', four, two, ' ', 'y'));
}

TEST(AddedTokens, ASpecialOneDoesNotHideAnOrdinaryOne) {
  TokenizerData data = tiny_byte_bpe({});
  const int32_t ordinary = add_token(data, "<a", false);
  const int32_t special = add_token(data, "<a>", true);
  const auto tokenizer = make_tokenizer(data);
  EXPECT_THAT(tokenizer->encode("<a>"), ElementsAre(ordinary, '>'));
  EXPECT_THAT(tokenizer->encode("<a>", kParse), ElementsAre(special));
}

TEST(AddedTokens, TakeWhiteSpaceAroundThem) {
  TokenizerData data = tiny_byte_bpe({});
  const int32_t mask = add_token(data, "<m>", false);
  data.added.back().lstrip = data.added.back().rstrip = true;
  EXPECT_THAT(make_tokenizer(data)->encode("a \n<m>\u00a0 b <m> <m>"),
              ElementsAre('a', mask, 'b', mask, mask));
}

TEST(AddedTokens, SingleWordsStandAlone) {
  TokenizerData data = tiny_byte_bpe({});
  const int32_t cat = add_token(data, "cat", false);
  data.added.back().single_word = true;
  const auto tokenizer = make_tokenizer(data);
  EXPECT_THAT(tokenizer->encode("cat"), ElementsAre(cat));
  EXPECT_THAT(tokenizer->encode("(cat)"), ElementsAre('(', cat, ')'));
  EXPECT_THAT(tokenizer->encode("cats"), Not(Contains(cat)));
  EXPECT_THAT(tokenizer->encode("écat"), Not(Contains(cat)));
  EXPECT_THAT(tokenizer->encode("cat\u200d"), Not(Contains(cat)));
  EXPECT_THAT(tokenizer->encode("\u200ccat"), Not(Contains(cat)));
  EXPECT_THAT(tokenizer->encode("\u2167cat"), Not(Contains(cat))) << "a letter number";
  EXPECT_THAT(tokenizer->encode("cat\u24d0"), Not(Contains(cat))) << "a circled letter";
}

TEST(AddedTokens, LiteralRangesHideSpecialTokens) {
  TokenizerData data = tiny_byte_bpe({});
  const int32_t end = add_token(data, "<e>", true);
  const auto tokenizer = make_tokenizer(data);
  const std::string text = "<e>x<e>y<e>";
  const auto encode = [&](std::vector<TextRange> ranges) {
    return tokenizer->encode(text, {.parse_special = true, .literal = ranges});
  };
  EXPECT_THAT(encode({}), ElementsAre(end, 'x', end, 'y', end));
  EXPECT_THAT(encode({{4, 7}}), ElementsAre(end, 'x', '<', 'e', '>', 'y', end));
  EXPECT_THAT(encode({{6, 7}, {10, 11}}), ElementsAre(end, 'x', '<', 'e', '>', 'y', '<', 'e', '>'));
  EXPECT_THAT(encode({{3, 4}}), ElementsAre(end, 'x', end, 'y', end));
}

TEST(AddedTokens, LiteralRangesCountFromTheTextsStartInBrokenText) {
  TokenizerData data = tiny_byte_bpe({});
  const int32_t end = add_token(data, "<e>", true);
  const auto tokenizer = make_tokenizer(data);
  const std::vector<TextRange> literal{{5, 8}};
  EXPECT_THAT(tokenizer->encode("<e>\xff\xff<e><e>", {.parse_special = true, .literal = literal}),
              ElementsAre(end, 0xff, 0xff, '<', 'e', '>', end));
}

TEST(AddedTokens, LiteralRangesHideNormalizedOnesOnlyWhereTheyAre) {
  TokenizerData data = tiny_byte_bpe({});
  data.normalizers.assign(2, TokenizerStep());
  data.normalizers[0].kind = "Strip";
  data.normalizers[0].start = data.normalizers[0].stop = 1;
  data.normalizers[1].kind = "Replace";
  data.normalizers[1].pattern = "é";
  data.normalizers[1].content = "ee";
  data.pre_tokenizers.assign(1, TokenizerStep());
  data.pre_tokenizers[0].kind = "ByteLevel";
  data.pre_tokenizers[0].use_regex = false;
  const int32_t end = add_token(data, "<e>", true);
  data.added.back().normalized = true;
  const auto tokenizer = make_tokenizer(data);
  const auto encode = [&](std::vector<TextRange> ranges) {
    return tokenizer->encode(" é <e> é<e> ", {.parse_special = true, .literal = ranges});
  };
  EXPECT_THAT(encode({}), ElementsAre('e', 'e', ' ', end, ' ', 'e', 'e', end));
  EXPECT_THAT(encode({{4, 5}}), ElementsAre('e', 'e', ' ', '<', 'e', '>', ' ', 'e', 'e', end));
  EXPECT_THAT(encode({{9, 10}, {10, 12}}),
              ElementsAre('e', 'e', ' ', end, ' ', 'e', 'e', '<', 'e', '>'))
      << "a range that begins inside a character";
}

TEST(AddedTokens, OrdinaryOnesOfCharactersAreDecodedAsOthersAre) {
  const auto gemma = fixture_tokenizer("gemma.json");
  EXPECT_EQ(gemma->decode(std::vector<int32_t>{510, 511}), "      ");
  TokenizerData data = tiny_byte_bpe({});
  const int32_t ordinary = add_token(data, "Ġ▁", false);
  EXPECT_EQ(make_tokenizer(data)->token_bytes(ordinary), "Ġ▁");
}

RC_GTEST_PROP(AddedTokens, UserTextNeverHoldsASpecialToken, ()) {
  static const auto tokenizer = fixture_tokenizer("qwen2.json");
  const auto parts = *rc::gen::container<std::vector<std::string>>(
      rc::gen::element<std::string>("<|im_start|>", "<|im_", "end|>", "<|", " ", "<mask>",
                                    "</tool_call>", "A", "\u030a", "\xff"));
  std::string text;
  for (const std::string& part : parts) text += part;
  for (const int32_t token : tokenizer->encode(text, {.add_special = false})) {
    RC_ASSERT(!tokenizer->is_special(token));
  }
}

}  // namespace
}  // namespace reprise

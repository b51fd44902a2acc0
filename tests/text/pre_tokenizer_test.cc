#include "text/pre_tokenizer.h"

#include <gmock/gmock.h>

#include "text/normalizer.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Pieces = std::vector<std::string>;

Pieces cut(const PreTokenizer& pre_tokenizer, std::string_view text) {
  SplitContext context;
  Pieces pieces;
  pre_tokenizer.split(text, context, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

Pieces cut(const std::vector<TokenizerStep>& steps, std::string_view text) {
  auto made = PreTokenizer::from_steps(steps);
  EXPECT_TRUE(made) << made.error().message;
  return made ? cut(*made, text) : Pieces();
}

Pieces cut_gguf(std::string_view name, std::string_view text) {
  auto made = PreTokenizer::from_gguf(name);
  EXPECT_TRUE(made) << made.error().message;
  return made ? cut(*made, text) : Pieces();
}

TokenizerStep split_step(const std::string& pattern, const std::string& behavior,
                         bool invert = false) {
  TokenizerStep step;
  step.kind = "Split";
  step.pattern = pattern;
  step.pattern_is_regex = true;
  step.behavior = behavior;
  step.invert = invert;
  return step;
}

TEST(PreTokenizer, BehaviorsPlaceMatches) {
  const std::string text = "-a--b-";
  EXPECT_THAT(cut({split_step("-", "Isolated")}, text), ElementsAre("-", "a", "-", "-", "b", "-"));
  EXPECT_THAT(cut({split_step("-", "Removed")}, text), ElementsAre("a", "b"));
  EXPECT_THAT(cut({split_step("-", "MergedWithPrevious")}, text),
              ElementsAre("-", "a-", "-", "b-"));
  EXPECT_THAT(cut({split_step("-", "MergedWithNext")}, text), ElementsAre("-a", "-", "-b", "-"));
  EXPECT_THAT(cut({split_step("-", "Contiguous")}, text), ElementsAre("-", "a", "--", "b", "-"));
  EXPECT_THAT(cut({split_step("[a-z]", "Removed", true)}, text), ElementsAre("a", "b"));
}

TEST(PreTokenizer, EmptyMatchesCut) {
  EXPECT_THAT(cut({split_step("(?=[A-Z])", "Isolated")}, "camelCaseÉtéText"),
              ElementsAre("camel", "CaseÉté", "Text"));
}

TEST(PreTokenizer, FamiliesDifferInDigitsAndSpaces) {
  EXPECT_THAT(cut_gguf("gpt-2", "It's  1234!\n\n x"),
              ElementsAre("It", "'s", " ", " 1234", "!", "\n\n", " x"));
  EXPECT_THAT(cut_gguf("llama-bpe", "It'S  1234!\n\n x"),
              ElementsAre("It", "'S", " ", " ", "123", "4", "!\n\n", " x"));
  EXPECT_THAT(cut_gguf("qwen2", "a 12"), ElementsAre("a", " ", "1", "2"));
  EXPECT_THAT(cut_gguf("smollm", "a 12 b"), ElementsAre("a", " ", "1", "2", " b"));
  EXPECT_THAT(cut_gguf("tekken", "camelCase ABCdef"), ElementsAre("camel", "Case", " ABCdef"));
  EXPECT_THAT(cut_gguf("falcon", "12345 a+b"), ElementsAre("123", "45", " a", "+", "b"));
}

TEST(PreTokenizer, WhiteSpaceIsUnicodes) {
  EXPECT_THAT(cut({split_step(R"(\s)", "Removed")}, "a\u00a0b\u2028c\u3000d\u0085e"),
              ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_THAT(cut({split_step(R"([\s])", "Removed")}, "a\u180eb\u200bc"),
              ElementsAre("a\u180eb\u200bc"))
      << "neither has the property White_Space";
}

TEST(PreTokenizer, PropertiesAreOnigurumas) {
  const std::string text = "\u6f22\u3001a";
  EXPECT_THAT(cut({split_step(R"(\p{Han}+)", "Isolated")}, text), ElementsAre("\u6f22", "\u3001a"))
      << "scripts without the punctuation they share";
  EXPECT_THAT(cut({split_step(R"([^\P{Han}a]+)", "Isolated")}, text),
              ElementsAre("\u6f22", "\u3001a"));
  EXPECT_THAT(cut({split_step(R"(\p{^Han}+)", "Isolated")}, text),
              ElementsAre("\u6f22", "\u3001a"));
  EXPECT_THAT(cut({split_step(R"(\p{Lu}|[\p{L}]{2})", "Isolated")}, "abCd"),
              ElementsAre("ab", "C", "d"));
  EXPECT_THAT(cut({split_step("[[:punct:]]+", "Isolated")}, "a.\u20ac\u00b0b"),
              ElementsAre("a", ".\u20ac\u00b0", "b"))
      << "symbols count as punctuation";
}

void expect_refused(const std::vector<TokenizerStep>& steps, const std::string& what) {
  const auto made = PreTokenizer::from_steps(steps);
  ASSERT_FALSE(made) << what;
  EXPECT_EQ(made.error().code, ErrorCode::kUnsupportedTokenizer);
  EXPECT_THAT(made.error().message, HasSubstr(what));
}

TEST(PreTokenizer, RefusesWhatItDoesNotHave) {
  TokenizerStep unknown;
  unknown.kind = "UnicodeScripts";
  expect_refused({unknown}, "UnicodeScripts");
  expect_refused({split_step("(", "Isolated")}, "(");
  expect_refused({split_step("[a&&[^b]]", "Isolated")}, "character classes");
  expect_refused({split_step("[a[bc]]", "Isolated")}, "character classes");
  expect_refused({split_step("[[:^punct:]]", "Isolated")}, "[:^punct:]");
  expect_refused({split_step("a", "Sideways")}, "Sideways");
  EXPECT_FALSE(PreTokenizer::from_gguf("kimi-k3"));
}

// A pattern that backtracks without end gives up; the text is kept whole.
TEST(PreTokenizer, HostilePatternsEnd) {
  const std::string text(40, 'a');
  Pieces pieces = cut({split_step("(a|aa|a?a)+$b", "Isolated")}, text);
  EXPECT_THAT(pieces, ElementsAre(text));
}

TEST(Normalizer, RefusesHugeReplacements) {
  TokenizerData data;
  data.normalizers.emplace_back().kind = "Prepend";
  data.normalizers.back().content = std::string(1000, 'x');
  const auto made = Normalizer::create(data, false);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kBadValue);
}

TEST(Normalizer, RefusesBrokenCharacterMaps) {
  for (const std::string& bytes :
       {std::string(), std::string("\1\0\0\0", 4), std::string("\xff\xff\xff\xff", 4),
        std::string("\4\0\0\0\0", 5)}) {
    TokenizerData data;
    data.normalizers.emplace_back().kind = "Precompiled";
    data.normalizers.back().content = bytes;
    EXPECT_FALSE(Normalizer::create(data, true)) << bytes.size();
  }
}

}  // namespace
}  // namespace reprise

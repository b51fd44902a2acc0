// What the tasks are made of: random draws, prose, prompt sizes.
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <regex>
#include <set>

#include "eval/task_fixtures.h"
#include "eval/tasks/prompt_size.h"
#include "eval/tasks/rng.h"
#include "eval/tasks/words.h"

namespace reprise::eval {
namespace {

using testing::ElementsAre;

TEST(Rng, DrawsAreFixedForEver) {
  Rng rng(1234, "fixed");
  const std::vector<uint64_t> draws = {rng.below(1000), rng.below(1000), rng.below(1000)};
  const std::string digits = rng.digits(7);
  EXPECT_THAT(draws, ElementsAre(668u, 951u, 723u));
  EXPECT_EQ(digits, "7660415");
}

TEST(Rng, StreamsAndSeedsDiffer) {
  EXPECT_NE(Rng(1, "a").bits(), Rng(1, "b").bits());
  EXPECT_NE(Rng(1, "a").bits(), Rng(2, "a").bits());
  EXPECT_EQ(Rng(1, "a").bits(), Rng(1, "a").bits());
}

TEST(Rng, BoundedDrawsAreUniform) {
  // Chi-squared with 6 degrees of freedom exceeds 22.5 once in a thousand times.
  Rng rng(7, "uniform");
  constexpr int kDraws = 70000;
  std::vector<int> counts(7);
  for (int i = 0; i < kDraws; ++i) ++counts[rng.below(7)];
  double chi = 0;
  for (const int count : counts) chi += std::pow(count - kDraws / 7.0, 2) / (kDraws / 7.0);
  EXPECT_LT(chi, 22.5);
}

TEST(Rng, DistinctDrawsAreDistinctAndInRange) {
  Rng rng(7, "distinct");
  for (size_t n = 0; n < 30; ++n) {
    for (size_t count = 0; count <= n; ++count) {
      const auto drawn = rng.distinct(count, n);
      const std::set<size_t> different(drawn.begin(), drawn.end());
      EXPECT_EQ(drawn.size(), count);
      EXPECT_EQ(different.size(), count);
      for (const size_t number : drawn) EXPECT_LT(number, n);
    }
  }
}

TEST(Rng, DigitsAndUuidsHaveTheirForm) {
  Rng rng(7, "forms");
  const std::regex uuid("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(std::regex_match(rng.uuid(), uuid));
    EXPECT_TRUE(std::regex_match(rng.digits(7), std::regex("[1-9][0-9]{6}")));
    EXPECT_TRUE(std::regex_match(rng.digits(19), std::regex("[1-9][0-9]{18}")));
  }
}

TEST(Words, NoneIsPartOfAnother) {
  // Answers are looked for as parts of a text, so one word must not stand for another.
  std::vector<std::string_view> words(kAdjectives.begin(), kAdjectives.end());
  words.insert(words.end(), kNouns.begin(), kNouns.end());
  for (const auto a : words) {
    for (const auto b : words) {
      EXPECT_TRUE(a.data() == b.data() || b.find(a) == b.npos) << a << " in " << b;
    }
  }
}

TEST(Prose, OneLineDropsWhiteSpaceRuns) {
  EXPECT_EQ(one_line("  a\n\n b\t c \r\n"), "a b c");
  EXPECT_EQ(one_line(" \n "), "");
}

TEST(Prose, FillReplacesOnceAndKeepsTheRest) {
  EXPECT_EQ(fill("{a} {b} {c} {", {{"a", "{b}"}, {"b", "x"}}), "{b} x {c} {");
  EXPECT_EQ(fill("", {{"a", "x"}}), "");
}

TEST(Prose, SentencesEndAtPunctuationNotAtTitles) {
  const Haystack hay("Mr. Hyde came. \"Why?\" she\nasked. J. Doe left! It cost 3.5 pounds",
                     count_pieces);
  ASSERT_EQ(hay.size(), 5u);
  EXPECT_EQ(hay.sentence(0), "Mr. Hyde came.");
  EXPECT_EQ(hay.sentence(1), "\"Why?\"");
  EXPECT_EQ(hay.sentence(2), "she asked.");
  EXPECT_EQ(hay.sentence(3), "J. Doe left!");
  EXPECT_EQ(hay.sentence(4), "It cost 3.5 pounds");
  EXPECT_EQ(hay.sentence(5), hay.sentence(0)) << "read in a circle";
}

TEST(Prose, TextWithoutPunctuationIsCutBetweenWords) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "word ";
  const Haystack hay(text, count_pieces);
  EXPECT_GT(hay.size(), 4u);
  std::string whole;
  for (size_t i = 0; i < hay.size(); ++i) whole += std::string(hay.sentence(i)) + " ";
  EXPECT_EQ(whole, text);
}

TEST(PromptLengths, KeepsWhatFits) {
  TaskContext context = task_context("");
  const uint32_t defaults[] = {1024, 2048, 4096};
  EXPECT_THAT(*prompt_lengths(context, defaults), ElementsAre(1024u, 2048u));
  context.context = 600;
  EXPECT_THAT(*prompt_lengths(context, defaults), ElementsAre(600u));
  context.lengths = {500, 300, 500};
  EXPECT_THAT(*prompt_lengths(context, defaults), ElementsAre(300u, 500u));
  context.lengths = {601};
  EXPECT_EQ(prompt_lengths(context, defaults).error().code, ErrorCode::kContextExceeded);
}

TEST(FitUnits, FindsALengthInFewCounts) {
  for (const size_t limit : {100u, 1000u, 10000u, 100000u}) {
    for (const size_t per_unit : {1u, 3u, 17u}) {
      size_t counts = 0;
      const auto counter = [&](std::string_view text) {
        ++counts;
        return text.size();
      };
      UnitSearch search{limit, limit * 96 / 100, 1, 1u << 24, limit / 25};
      const auto fitted = fit_units("test", search, counter,
                                    [&](size_t n) { return std::string(20 + n * per_unit, 'x'); });
      ASSERT_TRUE(fitted);
      const size_t tokens = 20 + fitted->units * per_unit;
      EXPECT_EQ(fitted->tokens, tokens);
      EXPECT_LE(tokens, limit);
      EXPECT_GT(tokens + per_unit, search.floor);
      EXPECT_LE(counts, 6u) << limit << " x " << per_unit;
    }
  }
}

TEST(FitUnits, EndsOnTextsThatAreNoStraightLine) {
  // Tokens grow with the square of the units: the line is a bad guide, bisection is not.
  size_t counts = 0;
  const auto counter = [&](std::string_view text) {
    ++counts;
    return text.size();
  };
  const UnitSearch search{1000000, 999000, 0, 1u << 16, 3};
  const auto fitted = fit_units("test", search, counter, [](size_t n) {
    return std::string(std::min<size_t>(n * n, 1u << 22), 'x');
  });
  ASSERT_TRUE(fitted);
  EXPECT_EQ(fitted->units, 1000u);
  EXPECT_LE(counts, 40u);
}

TEST(FitUnits, SaysWhenItIsImpossible) {
  const auto text = [](size_t n) { return std::string(50 + n, 'x'); };
  const auto counter = [](std::string_view t) { return t.size(); };
  const auto too_long = fit_units("toy", {40, 30, 0, 100, 1}, counter, text);
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(too_long.error().message, testing::StartsWith("toy: "));
  const auto too_short = fit_units("toy", {400, 300, 0, 100, 1}, counter, text);
  ASSERT_FALSE(too_short);
  EXPECT_THAT(too_short.error().message, testing::HasSubstr("150 tokens only"));
}

}  // namespace
}  // namespace reprise::eval

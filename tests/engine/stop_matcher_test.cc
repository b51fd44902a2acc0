#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace reprise {
namespace {

TEST(StopMatcher, EndsBeforeAStopStringThatArrivesInPieces) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.push("abcE"), "abc");
  EXPECT_EQ(matcher.push("N"), "");
  EXPECT_EQ(matcher.push("Dxyz"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, GivesBackWhatOnlyLookedLikeAStop) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.push("xEN"), "x");
  EXPECT_EQ(matcher.push("s"), "ENs");
  EXPECT_EQ(matcher.push("E"), "");
  EXPECT_EQ(matcher.finish(), "E");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, WithoutStopsNothingIsHeldBack) {
  StopMatcher matcher({""});
  EXPECT_EQ(matcher.push("abc"), "abc");
}

TEST(StopMatcher, AgreesWithSearchingTheWholeText) {
  std::mt19937 random(5);
  for (int run = 0; run < 2000; ++run) {
    const auto word = [&](size_t most) {
      std::string text;
      for (size_t n = random() % most + 1; n > 0; --n)
        text += static_cast<char>('a' + random() % 2);
      return text;
    };
    const std::vector<std::string> stops = {word(4) + "b", word(5) + "a"};
    const std::string text = word(30);
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t count = random() % 3 + 1;
      shown += matcher.push(std::string_view(text).substr(at, count));
      at += count;
    }
    // With pieces of up to three characters the first match seen is the one that ends first.
    size_t end = std::string::npos;
    for (const auto& stop : stops) end = std::min(end, text.find(stop));
    if (matcher.stopped()) {
      ASSERT_NE(end, std::string::npos);
      EXPECT_GE(shown.size(), end);
      EXPECT_TRUE(std::string_view(text).starts_with(shown));
    } else {
      EXPECT_EQ(end, std::string::npos);
      EXPECT_EQ(shown + matcher.finish(), text);
    }
  }
}

}  // namespace
}  // namespace reprise

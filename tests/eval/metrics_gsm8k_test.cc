#include <gmock/gmock.h>

#include "eval/metric_fixtures.h"
#include "eval/metrics/gsm8k_metrics.h"

namespace reprise::eval {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(Gsm8kTest, ExtractsWhatTheRegularExpressionDoes) {
  for (const auto& golden : metric_goldens("gsm8k")) {
    const auto answer = golden[0].get<std::string>();
    EXPECT_EQ(strict_number(answer).value, golden[1].get<std::string>()) << golden;
    EXPECT_EQ(flexible_number(answer).value, golden[2].get<std::string>()) << golden;
  }
}

TEST(Gsm8kTest, NumbersAreExactDecimals) {
  EXPECT_EQ(flexible_number("1,234").value, "1234");
  EXPECT_EQ(flexible_number("$18.00").value, "18");
  EXPECT_EQ(flexible_number("-5").value, "-5");
  EXPECT_EQ(flexible_number("72.50").value, "72.5");
  EXPECT_NE(flexible_number("72.50").value, flexible_number("72").value);
  EXPECT_NE(flexible_number("0.1000000000000000055511151231257827").value,
            flexible_number("0.1").value);
  EXPECT_EQ(flexible_number("-0.00").value, "0");
}

TEST(Gsm8kTest, FlagsFractions) {
  EXPECT_EQ(flexible_number("3 1/2").value, "2");
  EXPECT_TRUE(flexible_number("3 1/2").fraction);
  EXPECT_TRUE(flexible_number("1 / 2").fraction);
  EXPECT_EQ(strict_number("The answer is 3 1/2.").value, "3");
  EXPECT_TRUE(strict_number("The answer is 3 1/2.").fraction);
  EXPECT_TRUE(strict_number("The answer is 1/2.").fraction);
  EXPECT_FALSE(flexible_number("60/2 = 30").fraction);
  EXPECT_FALSE(strict_number("The answer is 30 2").fraction);
  EXPECT_FALSE(flexible_number("5 dollars/2").fraction);
}

TEST(Gsm8kTest, GoldIsBehindTheMark) {
  EXPECT_EQ(gold_number("6 * 7 = 43\n#### 42"), "42");
  EXPECT_EQ(gold_number("1,080"), "1080");
  EXPECT_EQ(gold_number("The answer is 7."), "7");
  EXPECT_EQ(gold_number("####"), "");
}

TEST(Gsm8kTest, ScoresBothExtractions) {
  EXPECT_THAT(gsm8k_scores("The answer is 18. She has 3 dogs.", "#### 18"),
              ElementsAre(Pair("strict", 1), Pair("flexible", 0), Pair("no_match", 0),
                          Pair("fraction", 0)));
  EXPECT_THAT(gsm8k_scores("so #### 42", "42"),
              ElementsAre(Pair("strict", 0), Pair("flexible", 1), Pair("no_match", 1),
                          Pair("fraction", 0)));
  EXPECT_THAT(gsm8k_scores("It is 3 1/2", "2"),
              ElementsAre(Pair("strict", 0), Pair("flexible", 1), Pair("no_match", 1),
                          Pair("fraction", 1)));
  EXPECT_THAT(gsm8k_scores("", ""), ElementsAre(Pair("strict", 0), Pair("flexible", 0),
                                                Pair("no_match", 1), Pair("fraction", 0)));
}

}  // namespace
}  // namespace reprise::eval

#include <gmock/gmock.h>

#include <vector>

#include "eval/metric_fixtures.h"
#include "eval/metrics/longbench_metrics.h"
#include "eval/metrics/matching.h"

namespace reprise::eval {
namespace {

using Texts = std::vector<std::string>;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(ClassificationTest, EqualsLongBenchWithAndWithoutItsQuirk) {
  bool differ = false;
  for (const auto& golden : metric_goldens("classification")) {
    const auto prediction = golden[0].get<std::string>(), reference = golden[1].get<std::string>();
    const auto classes = golden[2].get<Texts>();
    EXPECT_NEAR(classification(prediction, reference, classes, false), golden[3].get<double>(),
                kGoldenTolerance)
        << golden;
    EXPECT_NEAR(classification(prediction, reference, classes, true), golden[4].get<double>(),
                kGoldenTolerance)
        << golden;
    differ |= golden[3] != golden[4];
  }
  EXPECT_TRUE(differ);
}

TEST(CountTest, EqualsLongBench) {
  for (const auto& golden : metric_goldens("count")) {
    EXPECT_NEAR(count_score(golden[0].get<std::string>(), golden[1].get<std::string>()),
                golden[2].get<double>(), kGoldenTolerance)
        << golden;
  }
}

TEST(RetrievalTest, EqualsLongBench) {
  for (const auto& golden : metric_goldens("retrieval")) {
    EXPECT_NEAR(retrieval(golden[0].get<std::string>(), golden[1].get<std::string>()),
                golden[2].get<double>(), kGoldenTolerance)
        << golden;
  }
}

TEST(RetrievalTest, TakesTheNumberBehindTheLabel) {
  EXPECT_EQ(retrieval("3", "Paragraph x 4, Paragraph 3, Paragraph 5"), 1.0);
  EXPECT_EQ(retrieval("3", "3"), 0.0);
}

TEST(RulerTest, EqualsTheBenchmark) {
  for (const auto& golden : metric_goldens("ruler")) {
    const auto prediction = golden[0].get<std::string>();
    const auto references = golden[1].get<Texts>();
    EXPECT_NEAR(ruler_all(prediction, references), golden[2].get<double>(), kGoldenTolerance)
        << golden;
    EXPECT_EQ(ruler_part(prediction, references), golden[3].get<double>()) << golden;
  }
}

TEST(RulerTest, NoReferencesScoreNothing) {
  EXPECT_EQ(ruler_all("x", {}), 0.0);
  EXPECT_EQ(ruler_part("x", {}), 0.0);
}

TEST(NeedleTest, FindsTheNormalizedValue) {
  EXPECT_TRUE(needle_hit("It is 1234567.", "1234567"));
  EXPECT_TRUE(needle_hit("It is 1,234,567.", "1234567"));
  EXPECT_TRUE(needle_hit("1234567", "1,234,567"));
  EXPECT_TRUE(needle_hit("**2F1D-9a**", "2f1d-9A"));
  EXPECT_TRUE(needle_hit("a  brass\nlantern", "Brass lantern"));
  EXPECT_FALSE(needle_hit("123 4567", "1234567"));
  EXPECT_FALSE(needle_hit("1, 234567", "1234567"));
  EXPECT_FALSE(needle_hit("123456", "1234567"));
  EXPECT_FALSE(needle_hit("anything", " "));
  EXPECT_FALSE(needle_hit("", "1"));
}

TEST(LongBenchTest, TakesTheBestReference) {
  EXPECT_THAT(longbench_scores("hotpotqa", "Oslo", Texts{"Rome", "Oslo city", "x"}, {}),
              ElementsAre(Pair("f1", testing::DoubleNear(2.0 / 3, 1e-12))));
  EXPECT_THAT(longbench_scores("qasper_e", "no", Texts{"No."}, {}), ElementsAre(Pair("f1", 1.0)));
  EXPECT_THAT(longbench_scores("qasper", "no", {}, {}), ElementsAre(Pair("f1", 0.0)));
}

TEST(LongBenchTest, JudgesFewShotTasksByTheirFirstLine) {
  const Texts oslo{"Oslo"};
  EXPECT_THAT(longbench_scores("triviaqa", "\n\nOslo\nPassage: more", oslo, {}),
              ElementsAre(Pair("f1", 1.0)));
  EXPECT_THAT(longbench_scores("musique", "Oslo\nRome", oslo, {}),
              ElementsAre(Pair("f1", testing::DoubleNear(2.0 / 3, 1e-12))));
  EXPECT_THAT(longbench_scores("trec", "\nFood\nDates", Texts{"Food"}, Texts{"Food", "Dates"}),
              ElementsAre(Pair("classification", 1.0), Pair("classification_quirk", 1.0)));
}

TEST(LongBenchTest, NamesTheScoresOfEveryTask) {
  const Texts same{"Paragraph 3"};
  EXPECT_THAT(longbench_scores("gov_report", "Paragraph 3", same, {}),
              ElementsAre(Pair("rougeL_lb", testing::DoubleNear(1, 1e-7)), Pair("rougeL", 1.0),
                          Pair("recursion_zeroed", 0.0)));
  EXPECT_THAT(longbench_scores("passage_retrieval_en", "It is 3", same, {}),
              ElementsAre(Pair("retrieval", 1.0)));
  EXPECT_THAT(longbench_scores("passage_count", "3 or 4", Texts{"3"}, {}),
              ElementsAre(Pair("count", 0.5)));
  EXPECT_THAT(longbench_scores("repobench-p", "# f\nf(x)\ng", Texts{"f(x)"}, {}),
              ElementsAre(Pair("edit_sim", 1.0), Pair("edit_sim_indel", 1.0)));
  EXPECT_THAT(longbench_scores("dureader", "x", Texts{"x"}, {}), IsEmpty());
  EXPECT_THAT(longbench_scores("", "x", Texts{"x"}, {}), IsEmpty());
}

}  // namespace
}  // namespace reprise::eval

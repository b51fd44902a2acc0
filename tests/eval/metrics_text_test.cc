#include <gmock/gmock.h>

#include "eval/metric_fixtures.h"
#include "eval/metrics/edit_similarity.h"
#include "eval/metrics/qa_f1.h"
#include "eval/metrics/rouge.h"
#include "eval/metrics/words.h"

namespace reprise::eval {
namespace {

using testing::ElementsAre;

TEST(WordsTest, CutsLikePython) {
  EXPECT_THAT(split_words(" a\u00a0b\x1c\tc\n"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(split_words(" \n"), ElementsAre());
  EXPECT_THAT(split_at("", '.'), ElementsAre(""));
  EXPECT_THAT(split_at("a..b.", '.'), ElementsAre("a", "", "b", ""));
  EXPECT_THAT(digit_runs("a12b\u0663 4"), ElementsAre("12", "\u0663", "4"));
  EXPECT_THAT(lines_after_newlines("\n\n a\n\nb"), ElementsAre(" a", "", "b"));
  EXPECT_THAT(lines_after_newlines("\n"), ElementsAre(""));
}

TEST(WordsTest, BrokenBytesAreCharacters) {
  EXPECT_THAT(split_words("\xff\xc3 a\xe2\x82"), ElementsAre("\xff\xc3", "a\xe2\x82"));
}

TEST(QaF1Test, EqualsTheReference) {
  for (const auto& golden : metric_goldens("texts")) {
    EXPECT_NEAR(qa_f1(golden[0].get<std::string>(), golden[1].get<std::string>()),
                golden[2].get<double>(), kGoldenTolerance)
        << golden;
  }
}

TEST(QaF1Test, DropsArticlesInsideWords) {
  EXPECT_THAT(qa_tokens("The \u2018a\u2019 of an-other's Thea"),
              ElementsAre("\u2018", "\u2019", "of", "anothers", "thea"));
}

TEST(RougeTest, SummaryEqualsThePackage) {
  for (const auto& golden : metric_goldens("texts")) {
    const SummaryRougeL rouge =
        summary_rouge_l(golden[0].get<std::string>(), golden[1].get<std::string>());
    EXPECT_NEAR(rouge.f, golden[3].get<double>(), kGoldenTolerance) << golden;
    EXPECT_EQ(rouge.recursion_fails, golden[4].get<bool>()) << golden;
  }
}

TEST(RougeTest, ClassicalEqualsThePackage) {
  for (const auto& golden : metric_goldens("texts")) {
    EXPECT_NEAR(rouge_l(golden[0].get<std::string>(), golden[1].get<std::string>()),
                golden[5].get<double>(), kGoldenTolerance)
        << golden;
  }
}

TEST(RougeTest, RepeatedWordsCountOnceInSummaries) {
  const std::string repeated = "a a a a b", reference = "a b c d";
  EXPECT_NEAR(summary_rouge_l(repeated, reference).f, 2.0 / 3, 1e-7);  // P 2/2, R 2/4
  EXPECT_NEAR(rouge_l(repeated, reference), 4.0 / 9, 1e-12);           // P 2/5, R 2/4
}

TEST(EditSimilarityTest, EqualsFuzzywuzzyWithBothBackEnds) {
  bool differ = false;
  for (const auto& golden : metric_goldens("edit_similarity")) {
    const auto prediction = golden[0].get<std::string>(), reference = golden[1].get<std::string>();
    EXPECT_DOUBLE_EQ(edit_similarity(prediction, reference, EditRatio::kRatcliffObershelp),
                     golden[2].get<double>())
        << golden;
    EXPECT_DOUBLE_EQ(edit_similarity(prediction, reference, EditRatio::kIndel),
                     golden[3].get<double>())
        << golden;
    differ |= golden[2] != golden[3];
  }
  EXPECT_TRUE(differ);
}

TEST(EditSimilarityTest, PopularCharactersStartNoMatchInLongTexts) {
  std::string rotated;
  for (int i = 0; i < 100; ++i) rotated += "ab";
  // 199 characters: all but one match. 200: nothing starts a match and the first ones differ.
  EXPECT_GT(
      edit_similarity(rotated.substr(1), rotated.substr(0, 199), EditRatio::kRatcliffObershelp),
      0.98);
  EXPECT_EQ(edit_similarity(rotated.substr(1), rotated, EditRatio::kRatcliffObershelp), 0.0);
}

TEST(CodeLineTest, IsTheFirstWithoutMarks) {
  for (const auto& golden : metric_goldens("code_line")) {
    EXPECT_EQ(code_line(golden[0].get<std::string>()), golden[1].get<std::string>()) << golden;
  }
}

}  // namespace
}  // namespace reprise::eval

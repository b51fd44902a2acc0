// What rows are chosen by.
#include "fusion/row_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "fusion/fusion_testing.h"

namespace reprise {
namespace {

TEST(ValueDeviation, IsTheSquaredDistance) {
  FusionCase test(4, 2, 8, 50, true);
  const std::vector<Row> rows = {{0, 3, 0}, {0, 17, 0}, {0, 49, 0}};
  const auto fresh = test.values(3 * 16);
  const auto found = value_deviation(1, rows, fresh.data(), *test.kv, test.threads);
  for (size_t row = 0; row < rows.size(); ++row) {
    double expected = 0;
    for (size_t i = 0; i < 16; ++i) {
      const double d = fresh[row * 16 + i] - test.v[static_cast<size_t>(rows[row].position)][i];
      expected += d * d;
    }
    EXPECT_NEAR(found[row], expected, expected * 1e-5);
  }
}

TEST(RowChoice, PoolsWithZerosBeyondTheEnds) {
  const std::vector<float> scores = {5, 0, 0, 0, 10};
  EXPECT_EQ(pooled(scores, 1), scores);
  EXPECT_EQ(pooled(scores, 5), (std::vector<float>{1, 1, 3, 2, 2}));
}

TEST(RowChoice, TakesTheBestAndOfEqualsTheFirst) {
  const std::vector<int32_t> candidates = {4, 8, 15, 16, 23, 42};
  const std::vector<float> scores = {1, 3, 2, 3, 3, 0};
  EXPECT_EQ(best_positions(scores, candidates, 0.34f), (std::vector<int32_t>{8, 16}));
  EXPECT_EQ(best_positions(scores, candidates, 0.99f), (std::vector<int32_t>{4, 8, 15, 16, 23}));
  EXPECT_EQ(best_positions(scores, candidates, 1.0f), candidates);
  EXPECT_TRUE(best_positions(scores, candidates, 0.1f).empty());
  const std::vector<float> signs = {-1.0f, 0.0f, -0.0f, -2.0f, 1e-30f, -INFINITY};
  EXPECT_EQ(best_positions(signs, candidates, 0.34f), (std::vector<int32_t>{8, 23}));
  EXPECT_EQ(best_positions(signs, candidates, 0.5f), (std::vector<int32_t>{8, 15, 23}));
  EXPECT_EQ(best_positions(signs, candidates, 0.84f), (std::vector<int32_t>{4, 8, 15, 16, 23}));
}

// The nearest float may be below what was typed.
TEST(RowChoice, TheRatioIsWhatWasTyped) {
  std::vector<int32_t> candidates(100'000);
  std::iota(candidates.begin(), candidates.end(), 0);
  const std::vector<float> scores(candidates.size());
  for (const size_t rows : {20, 100, 1000, 100'000}) {
    for (size_t percent = 1; percent <= 100; ++percent) {
      const auto ratio = static_cast<float>(static_cast<double>(percent) / 100);
      const auto chosen =
          best_positions({scores.data(), rows}, {candidates.data(), rows}, ratio).size();
      EXPECT_EQ(chosen, rows * percent / 100) << percent << " % of " << rows;
    }
  }
}

TEST(RowChoice, PutsChosenCandidatesFirst) {
  const std::vector<int32_t> candidates = {4, 8, 15, 16, 23, 42};
  std::vector<float> scores = {1, 3, 2, 3, 9, 0};
  put_first(std::vector<int32_t>{15, 42}, candidates, scores);
  EXPECT_EQ(best_positions(scores, candidates, 0.5f), (std::vector<int32_t>{15, 23, 42}));
  EXPECT_EQ(best_positions(scores, candidates, 0.17f), (std::vector<int32_t>{15}));
}

}  // namespace
}  // namespace reprise

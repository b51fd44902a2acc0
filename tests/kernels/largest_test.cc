#include "kernels/largest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/isa.h"

namespace reprise::kernels {
namespace {

std::vector<int32_t> chosen(const std::vector<float>& scores, size_t k) {
  std::vector<int32_t> indices(k + 1, -1);
  largest(scores.data(), scores.size(), k, indices.data());
  EXPECT_EQ(indices.back(), -1);  // nothing is written behind them
  indices.pop_back();
  return indices;
}

std::vector<int32_t> by_sorting(const std::vector<float>& scores, size_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

class Largest : public IsaTest<> {};

INSTANTIATE_TEST_SUITE_P(Isas, Largest, ::testing::Values(Isa::kScalar, Isa::kAvx512));

TEST_P(Largest, EqualsSortingOnAnyScores) {
  std::mt19937 random(3);
  for (const size_t n : {1, 2, 15, 16, 17, 31, 256, 3000}) {
    for (const float scale : {0.0f, 1e-30f, 1.0f, 1e30f}) {
      std::normal_distribution<float> normal;
      std::vector<float> scores(n);
      for (float& score : scores) score = scale * std::round(8 * normal(random));  // many ties
      if (n > 200) std::ranges::generate(scores, [&] { return scale * normal(random); });
      for (const size_t k : {size_t{0}, size_t{1}, n / 3, n - 1, n}) {
        EXPECT_EQ(chosen(scores, k), by_sorting(scores, k)) << n << " " << scale << " " << k;
      }
    }
  }
}

TEST_P(Largest, NanIsWorstAndInfinityIsBest) {
  const float nan = std::nanf(""), inf = INFINITY;
  EXPECT_EQ(chosen({nan, 1, -inf, inf, nan, -2}, 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(chosen({nan, 1, -inf, inf, nan, -2}, 4), (std::vector<int32_t>{1, 2, 3, 5}));
  EXPECT_EQ(chosen({-nan, nan, -1}, 1), (std::vector<int32_t>{2}));
  EXPECT_EQ(chosen({-nan, nan, -inf, -nan}, 2), (std::vector<int32_t>{0, 2}));
}

TEST_P(Largest, TiesGoToTheLowerIndex) {
  EXPECT_EQ(chosen({0.0f, -0.0f, 0.0f, -0.0f}, 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(chosen({5, 7, 7, 7, 5}, 2), (std::vector<int32_t>{1, 2}));
}

}  // namespace
}  // namespace reprise::kernels

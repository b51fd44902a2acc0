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

INSTANTIATE_TEST_SUITE_P(Isas, Largest, ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512));

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

TEST_P(Largest, MarksAreTheSameWhereverTheSearchBegins) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const size_t n : {1, 16, 17, 250, 1000}) {
    for (const float step : {0.0f, 0.25f}) {  // the second makes ties
      std::vector<float> scores(n);
      for (float& score : scores) {
        score = normal(random);
        if (step > 0.0f) score = step * std::round(score / step);
      }
      int32_t at = 0;  // where the search before ended
      for (const size_t k : {size_t{0}, size_t{1}, n / 2, n / 2 + 1, n}) {
        for (const int32_t near : {at, 0, INT32_MIN, INT32_MAX, static_cast<int32_t>(random())}) {
          std::vector<uint16_t> marks((n + kMarks - 1) / kMarks + 1, 0xabcd);
          at = near;
          mark_largest(scores.data(), n, k, at, marks.data());
          EXPECT_EQ(marks.back(), 0xabcd);
          std::vector<int32_t> marked;
          for (size_t i = 0; i < n; ++i) {
            if (marks[i / kMarks] >> i % kMarks & 1) marked.push_back(static_cast<int32_t>(i));
          }
          EXPECT_EQ(marked, by_sorting(scores, k)) << n << " " << step << " " << k << " " << near;
        }
      }
    }
  }
}

TEST_P(Largest, WhatIsMarkedIsTakenAndPutBack) {
  std::mt19937 random(6);
  for (const size_t n : {1, 16, 33, 250}) {
    std::vector<uint16_t> marks((n + kMarks - 1) / kMarks);
    std::vector<int32_t> blocks(n), want_blocks;
    std::vector<float> scores(n), want_scores;
    for (size_t i = 0; i < n; ++i) {
      blocks[i] = static_cast<int32_t>(3 * i);
      scores[i] = static_cast<float>(i) + 0.5f;
      if (random() % 2 == 0) continue;
      marks[i / kMarks] |= static_cast<uint16_t>(1u << i % kMarks);
      want_blocks.push_back(blocks[i]);
      want_scores.push_back(scores[i]);
    }
    std::vector<int32_t> some_blocks(want_blocks.size() + 1, -1);
    std::vector<float> some_scores(want_scores.size() + 1, -1.0f), after = scores;
    take_marked(marks.data(), n, blocks.data(), scores.data(), some_blocks.data(),
                some_scores.data());
    want_blocks.push_back(-1);  // nothing is written behind them
    want_scores.push_back(-1.0f);
    EXPECT_EQ(some_blocks, want_blocks);
    EXPECT_EQ(some_scores, want_scores);
    for (float& score : some_scores) score = -score;
    put_marked(marks.data(), n, some_scores.data(), after.data());
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(after[i], marks[i / kMarks] >> i % kMarks & 1 ? -scores[i] : scores[i]);
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

// Scores of rows against plain double precision.
#include "fusion/row_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "model/rope.h"

namespace reprise {
namespace {

struct Case {
  ModelConfig config;
  std::unique_ptr<RopeTable> rope;
  std::optional<PagePool> pool;
  std::optional<SequenceKv> kv;
  std::vector<std::vector<float>> k, v;  // [tokens][n_kv_head * head_dim] before rotation
  ThreadPool threads{2};
  std::mt19937 random{5};
  std::normal_distribution<float> normal;

  Case(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, size_t tokens, bool rotated) {
    config.n_head = heads;
    config.n_kv_head = kv_heads;
    config.head_dim = head_dim;
    RopeConfig angles;
    angles.dims = head_dim;
    rope = std::make_unique<RopeTable>(angles, 4096);
    const kernels::KvLayout layout = {kernels::KvType::kF32, kv_heads, head_dim};
    pool.emplace(std::move(*PagePool::create(layout, 2, 64 << 20)));
    kv.emplace(*pool);
    EXPECT_TRUE(kv->reserve(tokens));
    for (size_t at = 0; at < tokens; ++at) {
      k.push_back(values(kv_heads * head_dim));
      v.push_back(values(kv_heads * head_dim));
      std::vector<float> key = k.back();
      if (rotated) rotate(key, at);
      kernels::store_token(layout, kv->page(1, at / kPageTokens), at % kPageTokens, key.data(),
                           v.back().data());
    }
    kv->commit(tokens);
  }
  std::vector<float> values(size_t count) {
    std::vector<float> out(count);
    for (float& value : out) value = normal(random);
    return out;
  }
  void rotate(std::vector<float>& heads, size_t position) const {
    std::vector<float> angles(rope->pairs() * 2);
    rope->cos_sin(static_cast<int32_t>(position), angles.data());
    for (size_t i = 0; i < heads.size(); i += 2) {
      const size_t pair = i % config.head_dim / 2;
      const float c = angles[2 * pair], s = angles[2 * pair + 1], x = heads[i], y = heads[i + 1];
      heads[i] = x * c - y * s;
      heads[i + 1] = x * s + y * c;
    }
  }
};

TEST(QuestionAttention, EqualsPlainSums) {
  for (const bool rotated : {true, false}) {
    constexpr size_t kTokens = 333, kQuestion = 300;
    Case test(6, 2, 16, kTokens, rotated);
    std::vector<Row> rows;
    std::vector<float> q;
    for (size_t at = kQuestion; at < kTokens; ++at) {
      rows.push_back({0, static_cast<int32_t>(at), 0});
      const auto row = test.values(6 * 16);
      q.insert(q.end(), row.begin(), row.end());
    }
    std::vector<int32_t> candidates;
    for (int32_t at = 10; at < 290; ++at) {
      if (at % 7 != 3) candidates.push_back(at);
    }
    const RopeTable* ropes[] = {test.rope.get(), test.rope.get()};
    const auto scores = question_attention(test.config, ropes, 1, {rows, q.data()}, *test.kv,
                                           candidates, rotated, test.threads);

    std::vector<double> expected(candidates.size());
    for (size_t r = 0; r < rows.size(); ++r) {
      std::vector<float> query(q.begin() + static_cast<std::ptrdiff_t>(r * 96),
                               q.begin() + static_cast<std::ptrdiff_t>((r + 1) * 96));
      test.rotate(query, kQuestion + r);
      const auto weight = [&](size_t at) {
        std::vector<float> key = test.k[at];
        test.rotate(key, at);
        double dot = 0;
        for (size_t head = 0; head < 6; ++head) {
          for (size_t d = 0; d < 16; ++d) dot += query[head * 16 + d] * key[head / 3 * 16 + d];
        }
        return std::exp(dot / std::sqrt(96.0));
      };
      double sum = 0;
      std::vector<double> weights;
      for (const int32_t at : candidates) {
        weights.push_back(weight(static_cast<size_t>(at)));
        sum += weights.back();
      }
      for (size_t own = kQuestion; own <= kQuestion + r; ++own) sum += weight(own);
      for (size_t i = 0; i < weights.size(); ++i) expected[i] += weights[i] / sum;
    }
    // A dot of 96 products in float: error below 96 eps |q||k|, here |q||k| < 300.
    const double tolerance = 96 * 0x1p-24 * 300 / std::sqrt(96.0) * 4;
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_NEAR(scores[i] / expected[i], 1.0, tolerance) << i;
    }
  }
}

TEST(QuestionAttention, IsTheSameOnAnyNumberOfThreads) {
  Case test(4, 4, 32, 100, true);
  std::vector<Row> rows;
  for (int32_t at = 60; at < 100; ++at) rows.push_back({0, at, 0});
  const auto q = test.values(40 * 128);
  const std::vector<int32_t> candidates = {1, 5, 6, 40, 59};
  const RopeTable* ropes[] = {test.rope.get(), test.rope.get()};
  ThreadPool one(1), three(3);
  EXPECT_EQ(
      question_attention(test.config, ropes, 1, {rows, q.data()}, *test.kv, candidates, true, one),
      question_attention(test.config, ropes, 1, {rows, q.data()}, *test.kv, candidates, true,
                         three));
}

TEST(ValueDeviation, IsTheSquaredDistance) {
  Case test(4, 2, 8, 50, true);
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

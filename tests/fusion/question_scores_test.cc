// Scores of rows against plain double precision.
#include "fusion/question_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "fusion/fusion_testing.h"

namespace reprise {
namespace {

TEST(JointAttention, EqualsPlainSums) {
  for (const bool rotated : {true, false}) {
    constexpr size_t kTokens = 333, kQuestion = 300;
    FusionCase test(6, 2, 16, kTokens, rotated);
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
    const QuestionKeys keys = {test.config, ropes, 1, *test.kv, candidates, rotated};
    const auto scores = joint_attention(keys, {rows, q.data()}, test.threads);

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

// In double: what a candidate adds to the output of attention.
double plain_head_score(FusionCase& test, size_t question, const std::vector<float>& q,
                        int32_t candidate, double soft_cap) {
  const size_t dim = test.config.head_dim, heads = test.config.n_head, width = heads * dim;
  const size_t group = heads / test.config.n_kv_head;
  double score = 0;
  for (size_t row = 0; row < q.size() / width; ++row) {
    std::vector<float> query(q.begin() + static_cast<std::ptrdiff_t>(row * width),
                             q.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
    test.rotate(query, question + row);
    for (size_t head = 0; head < heads; ++head) {
      double sum = 0, own = 0, norm = 0;
      for (size_t at = 0; at <= question + row; ++at) {
        std::vector<float> key = test.k[at];
        test.rotate(key, at);
        double logit = 0;
        for (size_t d = 0; d < dim; ++d) {
          logit += query[head * dim + d] * key[head / group * dim + d];
        }
        logit *= test.config.attention_scale;
        if (soft_cap > 0) logit = soft_cap * std::tanh(logit / soft_cap);
        sum += std::exp(logit);
        if (at == static_cast<size_t>(candidate)) own = std::exp(logit);
      }
      for (size_t d = 0; d < dim; ++d) {
        norm += std::pow(test.v[static_cast<size_t>(candidate)][head / group * dim + d], 2);
      }
      score += own / sum * std::sqrt(norm);
    }
  }
  return score;
}

TEST(HeadAttention, EqualsPlainSums) {
  for (const bool rotated : {true, false}) {
    for (const float soft_cap : {0.0f, 2.0f}) {
      constexpr size_t kTokens = 333, kQuestion = 300;
      FusionCase test(6, 2, 16, kTokens, rotated);
      test.config.attention_scale = 0.3f;
      test.config.attention_soft_cap = soft_cap;
      std::vector<Row> rows;
      for (size_t at = kQuestion; at < kTokens; ++at) {
        rows.push_back({0, static_cast<int32_t>(at), 0});
      }
      const auto q = test.values(rows.size() * 6 * 16);
      const std::vector<int32_t> candidates = {0, 15, 16, 100, 257, 299};
      const RopeTable* ropes[] = {test.rope.get(), test.rope.get()};
      const QuestionKeys keys = {test.config, ropes, 1, *test.kv, candidates, rotated};
      const auto scores = head_attention(keys, {rows, q.data()}, test.threads);
      for (size_t i = 0; i < candidates.size(); ++i) {
        const double expected = plain_head_score(test, kQuestion, q, candidates[i], soft_cap);
        // A dot of 16 products in float: |q||k| < 150, scaled; weights are sums of 198 of these.
        EXPECT_NEAR(scores[i] / expected, 1.0, (16 * 150 * 0.3 + 198) * 0x1p-24) << candidates[i];
      }
    }
  }
}

// As many rows and keys as do not fit at once.
TEST(HeadAttention, AddsUpRowsInParts) {
  constexpr size_t kTokens = 16384, kQuestion = kTokens - 70;
  FusionCase test(4, 1, 8, kTokens, true);
  test.config.attention_scale = 0.35f;
  std::vector<Row> rows;
  for (size_t at = kQuestion; at < kTokens; ++at) rows.push_back({0, static_cast<int32_t>(at), 0});
  const auto q = test.values(rows.size() * 4 * 8);
  std::vector<int32_t> candidates(kQuestion);
  std::iota(candidates.begin(), candidates.end(), 0);
  const RopeTable* ropes[] = {test.rope.get(), test.rope.get()};
  const QuestionKeys keys = {test.config, ropes, 1, *test.kv, candidates, true};
  const auto whole = head_attention(keys, {rows, q.data()}, test.threads);
  std::vector<double> sums(kQuestion);
  for (size_t row = 0; row < rows.size(); ++row) {
    const QuestionRows one = {std::span(rows).subspan(row, 1), q.data() + row * 32};
    const auto scores = head_attention(keys, one, test.threads);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += scores[i];
  }
  for (size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(whole[i] / sums[i], 1.0, 1e-5) << i;
}

TEST(QuestionScores, AreTheSameOnAnyNumberOfThreads) {
  constexpr size_t kQuestion = 1500;
  FusionCase test(4, 4, 32, kQuestion + 40, true);
  test.config.attention_scale = 0.2f;
  std::vector<Row> rows;
  for (size_t at = kQuestion; at < kQuestion + 40; ++at) {
    rows.push_back({0, static_cast<int32_t>(at), 0});
  }
  const auto q = test.values(40 * 128);
  std::vector<int32_t> candidates(kQuestion);
  std::iota(candidates.begin(), candidates.end(), 0);
  const RopeTable* ropes[] = {test.rope.get(), test.rope.get()};
  const QuestionKeys keys = {test.config, ropes, 1, *test.kv, candidates, true};
  ThreadPool one(1), three(3);
  EXPECT_EQ(joint_attention(keys, {rows, q.data()}, one),
            joint_attention(keys, {rows, q.data()}, three));
  EXPECT_EQ(head_attention(keys, {rows, q.data()}, one),
            head_attention(keys, {rows, q.data()}, three));
}

}  // namespace
}  // namespace reprise

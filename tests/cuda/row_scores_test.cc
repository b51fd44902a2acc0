#include "kernels/cuda/row_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

struct Shape {
  KvType type;
  uint32_t n_head, n_kv_head, head_dim;
};
constexpr Shape kShapes[] = {{KvType::kBF16, 8, 2, 64},
                             {KvType::kF16, 3, 3, 96},
                             {KvType::kBF16, 8, 1, 128},
                             {KvType::kFP8, 4, 2, 128},
                             {KvType::kF16, 4, 2, 256}};

// Pages in any order, and what they hold.
struct Keys {
  Keys(const Shape& shape, uint32_t count, unsigned seed)
      : random(seed), tiles(shape.type, shape.head_dim, 0), own(shape) {
    const uint32_t pages = (count + kPageTokens - 1) / kPageTokens;
    order.resize(pages);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);
    tiles = TestTiles(shape.type, shape.head_dim, size_t{pages} * shape.n_kv_head * 2);
    tiles.fill(random);
  }
  // values: of V, else K. dim: of all KV heads.
  double value(uint32_t key, uint32_t dim, bool values) const {
    const uint32_t head = dim / own.head_dim;
    const size_t tile = (size_t{order[key / kPageTokens]} * own.n_kv_head + head) * 2;
    return tiles.value(tile + (values ? 1 : 0), key % kPageTokens, dim % own.head_dim);
  }

  std::mt19937 random;
  TestTiles tiles;
  Shape own;
  std::vector<uint32_t> order;
};

// The last rows of a prompt.
struct Question {
  Question(Keys& keys, uint32_t count, uint32_t rows)
      : q(drawn(keys, rows)), positions(rows), queries(q), places(numbered(positions, count)) {}

  static std::vector<uint16_t> drawn(Keys& keys, uint32_t rows) {
    std::normal_distribution<float> normal;
    std::vector<uint16_t> q(size_t{rows} * keys.own.n_head * keys.own.head_dim);
    for (uint16_t& value : q) value = to_bf16(normal(keys.random)).bits;
    return q;
  }
  static const std::vector<int32_t>& numbered(std::vector<int32_t>& positions, uint32_t count) {
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(count - positions.size()));
    return positions;
  }
  /// Names itself in args, as many rows at a time as are scored at once, and calls score().
  template <class Args, class Score>
  void in_parts(Args& args, const Shape& shape, Score&& score) const {
    args.q = reinterpret_cast<const __nv_bfloat16*>(queries.get());
    args.positions = places.get();
    args.n_head = shape.n_head;
    for (auto left = static_cast<uint32_t>(positions.size()); left > 0; left -= args.rows) {
      args.rows = std::min(left, kScoredRows);
      ASSERT_EQ(score(), cudaSuccess);
      args.q += size_t{args.rows} * shape.n_head * shape.head_dim;
      args.positions += args.rows;
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  std::vector<uint16_t> q;         // [rows, n_head, head_dim]
  std::vector<int32_t> positions;  // [rows]
  DeviceArray<uint16_t> queries;
  DeviceArray<int32_t> places;
};

// Every shape with few rows and with more than are scored at once.
template <class Check>
void check_shapes(Check&& check) {
  unsigned seed = 0;
  for (const Shape& shape : kShapes) {
    for (const uint32_t rows : {1u, 33u, 150u}) {
      SCOPED_TRACE(std::to_string(seed));
      check(shape, rows, ++seed);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Scores that a question's rows add, in double.
std::vector<double> plain_scores(const Shape& shape, const Keys& keys, const Question& question,
                                 const std::vector<uint8_t>& candidates, int32_t first_own,
                                 double scale, double* largest) {
  std::vector<double> scores(candidates.size());
  const uint32_t dim = shape.head_dim, group = shape.n_head / shape.n_kv_head;
  for (size_t row = 0; row < question.positions.size(); ++row) {
    std::vector<double> weights(candidates.size());
    double sum = 0;
    for (uint32_t key = 0; key < candidates.size(); ++key) {
      const auto at = static_cast<int32_t>(key);
      if (candidates[key] == 0 && (at < first_own || at > question.positions[row])) continue;
      double dot = 0, size = 0;
      for (uint32_t head = 0; head < shape.n_head; ++head) {
        for (uint32_t d = 0; d < dim; ++d) {
          const double x = to_float(Bf16{question.q[(row * shape.n_head + head) * dim + d]}) *
                           keys.value(key, head / group * dim + d, false);
          dot += x;
          size += std::fabs(x);
        }
      }
      *largest = std::max(*largest, scale * size);
      weights[key] = std::exp(dot * scale);
      sum += weights[key];
    }
    for (uint32_t key = 0; key < candidates.size(); ++key) scores[key] += weights[key] / sum;
  }
  return scores;
}

void check_question(const Shape& shape, uint32_t keys_count, uint32_t rows, unsigned seed) {
  Keys keys(shape, keys_count, seed);
  const Question question(keys, keys_count, rows);
  const int32_t first_own = question.positions.front();
  std::vector<uint8_t> candidates(keys_count);
  for (int32_t key = 5; key < first_own - 3; ++key) {
    candidates[static_cast<size_t>(key)] = key % 7 != 3 ? 1 : 0;
  }
  const DeviceArray<uint8_t> kv(keys.tiles.bytes()), named(candidates);
  const DeviceArray<uint32_t> pages(keys.order);
  const DeviceArray<float> workspace(question_scores_workspace(rows, keys_count), 0xff);
  const DeviceArray<float> scores(std::vector<float>(keys_count, 2.0f));
  QuestionScoresArgs args;
  args.kv = {kv.get(), shape.type, shape.n_kv_head, shape.head_dim};
  args.pages = pages.get();
  args.candidates = named.get();
  args.keys = keys_count;
  args.first_own = first_own;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape.n_head * shape.head_dim));
  args.workspace = workspace.get();
  args.scores = scores.get();
  question.in_parts(args, shape, [&] {
    const cudaError_t status = question_logits(args, nullptr);
    return status == cudaSuccess ? question_weights(args, nullptr) : status;
  });
  if (testing::Test::HasFatalFailure()) return;
  double largest = 1;
  const auto want =
      plain_scores(shape, keys, question, candidates, first_own, args.scale, &largest);
  const auto got = scores.host();
  // Sums of so many products in float, in logits; then exponentials and sums over rows.
  const double products = shape.n_head * shape.head_dim;
  const double tolerance = (products + 16) * 0x1p-24 * largest + rows * 0x1p-22 + 0x1p-20;
  for (uint32_t key = 0; key < keys_count; ++key) {
    if (candidates[key] == 0) continue;
    ASSERT_NEAR(got[key], 2.0 + want[key], tolerance * want[key] + 0x1p-20) << "key " << key;
  }
}

TEST(RowScores, QuestionsAttendAsInDoublePrecision) {
  REPRISE_NEEDS_DEVICE();
  check_shapes([](const Shape& shape, uint32_t rows, unsigned seed) {
    check_question(shape, 333 + rows, rows, seed);
  });
}

// What a question's rows add by every head, in double.
std::vector<double> plain_head_scores(const Shape& shape, const Keys& keys,
                                      const Question& question, uint32_t count,
                                      const HeadScoresArgs& args, double* largest) {
  std::vector<double> scores(count);
  const uint32_t dim = shape.head_dim, group = shape.n_head / shape.n_kv_head;
  for (uint32_t head = 0; head < shape.n_head; ++head) {
    std::vector<double> norms(count), k(size_t{count} * dim);
    for (uint32_t key = 0; key < count; ++key) {
      for (uint32_t d = 0; d < dim; ++d) {
        norms[key] += std::pow(keys.value(key, head / group * dim + d, true), 2);
        k[size_t{key} * dim + d] = keys.value(key, head / group * dim + d, false);
      }
    }
    for (size_t row = 0; row < question.positions.size(); ++row) {
      std::vector<double> weights(count);
      double sum = 0;
      for (uint32_t key = 0; key <= static_cast<uint32_t>(question.positions[row]); ++key) {
        double dot = 0, size = 0;
        for (uint32_t d = 0; d < dim; ++d) {
          const double x = to_float(Bf16{question.q[(row * shape.n_head + head) * dim + d]}) *
                           k[size_t{key} * dim + d];
          dot += x;
          size += std::fabs(x);
        }
        *largest = std::max(*largest, args.scale * size);
        double logit = args.scale * dot;
        if (args.soft_cap > 0) logit = args.soft_cap * std::tanh(logit / args.soft_cap);
        weights[key] = std::exp(logit);
        sum += weights[key];
      }
      for (uint32_t key = 0; key < count; ++key) {
        scores[key] += weights[key] / sum * std::sqrt(norms[key]);
      }
    }
  }
  return scores;
}

void check_heads(const Shape& shape, uint32_t count, uint32_t rows, float soft_cap, unsigned seed) {
  Keys keys(shape, count, seed);
  const Question question(keys, count, rows);
  const DeviceArray<uint8_t> kv(keys.tiles.bytes());
  const DeviceArray<uint32_t> pages(keys.order);
  const DeviceArray<float> workspace(
      head_scores_workspace(rows, shape.n_head, shape.n_kv_head, count), 0xff);
  const DeviceArray<float> scores(std::vector<float>(count, 2.0f));
  HeadScoresArgs args;
  args.kv = {kv.get(), shape.type, shape.n_kv_head, shape.head_dim};
  args.pages = pages.get();
  args.keys = count;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  args.soft_cap = soft_cap;
  args.workspace = workspace.get();
  args.scores = scores.get();
  ASSERT_EQ(value_norms(args, nullptr), cudaSuccess);
  question.in_parts(args, shape, [&] { return head_scores(args, nullptr); });
  if (testing::Test::HasFatalFailure()) return;
  double largest = 1;
  const auto want = plain_head_scores(shape, keys, question, count, args, &largest);
  const auto got = scores.host();
  // Keys of other types are rounded to bf16; then sums in float, exponentials and sums over rows.
  const double rounding = shape.type == KvType::kBF16 ? 0.0 : 0x1p-9;
  const double tolerance = 2 * (rounding + (shape.head_dim + 16) * 0x1p-24) * largest +
                           (rows + 16.0) * shape.n_head * 0x1p-22 + 0x1p-18;
  for (uint32_t key = 0; key < count; ++key) {
    ASSERT_NEAR(got[key], 2.0 + want[key], tolerance * want[key] + 0x1p-20) << "key " << key;
  }
}

TEST(RowScores, HeadsAttendAsInDoublePrecision) {
  REPRISE_NEEDS_DEVICE();
  check_shapes([](const Shape& shape, uint32_t rows, unsigned seed) {
    check_heads(shape, 133 + rows, rows, seed % 2 == 0 ? 0.0f : 5.0f, seed);
  });
}

// More logits than are held at once: heads follow each other.
TEST(RowScores, HeadsOfLongPromptsTakeTurns) {
  REPRISE_NEEDS_DEVICE();
  check_heads({KvType::kBF16, 16, 4, 32}, 40000, 40, 0.0f, 3);
}

TEST(RowScores, ValuesAreComparedToStoredOnes) {
  REPRISE_NEEDS_DEVICE();
  for (const Shape& shape : kShapes) {
    constexpr uint32_t kKeys = 120;
    Keys keys(shape, kKeys, 7);
    const uint32_t width = shape.n_kv_head * shape.head_dim;
    const std::vector<int32_t> positions = {0, 3, 17, 18, 64, 119};
    std::normal_distribution<float> normal;
    std::vector<float> fresh(positions.size() * width);
    for (float& value : fresh) value = normal(keys.random);
    const DeviceArray<uint8_t> kv(keys.tiles.bytes());
    const DeviceArray<uint32_t> pages(keys.order);
    const DeviceArray<float> v(fresh), out(positions.size(), 0xff);
    const DeviceArray<int32_t> places(positions);
    ValueDeviationArgs args;
    args.kv = {kv.get(), shape.type, shape.n_kv_head, shape.head_dim};
    args.pages = pages.get();
    args.v = v.get();
    args.positions = places.get();
    args.rows = static_cast<uint32_t>(positions.size());
    args.out = out.get();
    ASSERT_EQ(value_deviation(args, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto got = out.host();
    for (size_t row = 0; row < positions.size(); ++row) {
      double want = 0;
      for (uint32_t d = 0; d < width; ++d) {
        const double stored = keys.value(static_cast<uint32_t>(positions[row]), d, true);
        want += std::pow(fresh[row * width + d] - stored, 2);
      }
      EXPECT_NEAR(got[row], want, want * (width / 256 + 16) * 0x1p-22);
    }
  }
}

TEST(RowScores, WhatIsNotServedIsSaid) {
  QuestionScoresArgs args;
  args.rows = 1;
  args.kv.head_dim = 80;
  EXPECT_EQ(question_logits(args, nullptr), cudaErrorNotSupported);
  HeadScoresArgs heads;
  heads.rows = 1;
  heads.kv.head_dim = 72;
  EXPECT_EQ(head_scores(heads, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda

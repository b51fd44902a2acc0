#include "methods/baselines/quest.h"

#include <gtest/gtest.h>

#include "attention/toy.h"
#include "methods/baselines/full.h"
#include "methods/baselines/random.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Toy;
using testing::ToyShape;

/// q and k at their own positions.
std::vector<float> rotated(const Toy& toy, const float* x, size_t heads, size_t position) {
  const size_t width = heads * toy.config().head_dim;
  std::vector<float> cos_sin(toy.rope().pairs() * 2), out(x, x + width);
  toy.rope().cos_sin(static_cast<int32_t>(position), cos_sin.data());
  for (size_t i = 0; i < width; i += 2) {
    const size_t pair = i % toy.config().head_dim / 2;
    const float c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1];
    out[i] = x[i] * c - x[i + 1] * s;
    out[i + 1] = x[i] * s + x[i + 1] * c;
  }
  return out;
}

struct Case {
  ToyShape shape;
  size_t tokens;
};

class Bounds : public ::testing::TestWithParam<Case> {};

TEST_P(Bounds, HoldForEveryKeyAndAreNotLoose) {
  const auto& [shape, tokens] = GetParam();
  Toy toy(shape, tokens + 1);
  FullPolicy full({}, toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, full, tokens, Phase::kPrefill);
  const size_t pages = tokens / kPageTokens, group = shape.n_head / shape.n_kv_head;
  const uint32_t layer = shape.n_layer - 1;
  PageBounds bounds(toy.config());
  ThreadPool pool(2);
  const auto q = rotated(toy, toy.q(layer, tokens), shape.n_head, tokens);
  // Taken in by two steps, as chunks of a prompt are.
  for (const size_t end : {tokens / 3, tokens}) {
    const Row row = {0, static_cast<int32_t>(end) - 1, 0};
    bounds.update({layer, Phase::kPrefill, {&row, 1}, nullptr, q.data(), 0, &kv, &pool});
  }
  const Row row = {0, static_cast<int32_t>(tokens), 0};
  std::vector<float> scores;
  bounds.score({layer, Phase::kDecode, {&row, 1}, nullptr, q.data(), 0, &kv, &pool}, pages, scores);
  std::vector<float> k(shape.n_kv_head * shape.head_dim), v(k.size());
  for (size_t head = 0; head < shape.n_kv_head; ++head) {
    for (size_t page = 0; page < pages; ++page) {
      double largest = -INFINITY, loosest = -INFINITY;
      for (size_t r = 0; r < group; ++r) {
        const float* query = &q[(head * group + r) * shape.head_dim];
        double norm = 0.0;
        for (size_t slot = 0; slot < kPageTokens; ++slot) {
          kernels::load_token(kv.pool().layout(), kv.page(layer, page), slot, k.data(), v.data());
          double dot = 0.0;
          for (size_t d = 0; d < shape.head_dim; ++d) {
            dot += double{query[d]} * k[head * shape.head_dim + d];
          }
          largest = std::max(largest, dot);
        }
        // sum |q_d| max |k_d| with bounds rounded by at most one bf16 step.
        for (size_t d = 0; d < shape.head_dim; ++d) {
          double top = 0.0;
          for (size_t slot = 0; slot < kPageTokens; ++slot) {
            kernels::load_token(kv.pool().layout(), kv.page(layer, page), slot, k.data(), v.data());
            top = std::max(top, std::abs(double{k[head * shape.head_dim + d]}));
          }
          norm += std::abs(double{query[d]}) * top * (1 + 0x1p-7);
        }
        loosest = std::max(loosest, norm);
      }
      const float score = scores[head * pages + page];
      EXPECT_GE(score, largest - 1e-5 * std::abs(largest)) << page;
      EXPECT_LE(score, loosest) << page;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Bounds,
                         ::testing::Values(Case{{2, 4, 2, 32, KvType::kF32}, 100},
                                           Case{{1, 9, 3, 64, KvType::kBF16}, 310},
                                           Case{{1, 4, 4, 80, KvType::kF16}, 48},
                                           Case{{1, 6, 2, 96, KvType::kBF12}, 77},
                                           Case{{1, 9, 1, 128, KvType::kQ8_0}, 64}));

TEST(Quest, ReadsThePlantedPageAndTheLastOne) {
  Toy toy({1, 2, 1, 32}, 201);
  // Token 70 holds the key that the last query looks for, far longer than any other.
  const auto q = rotated(toy, toy.q(0, 200), 2, 200);
  std::vector<float> cos_sin(toy.rope().pairs() * 2);
  toy.rope().cos_sin(70, cos_sin.data());
  for (size_t i = 0; i < 32; i += 2) {  // rotates back, so that its rotated form is along q
    const float c = cos_sin[i], s = cos_sin[i + 1];
    toy.k(0, 70)[i] = 20 * (q[i] * c + q[i + 1] * s);
    toy.k(0, 70)[i + 1] = 20 * (-q[i] * s + q[i + 1] * c);
  }
  QuestPolicy policy({48, 16}, toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_EQ(toy.executor().cost(0).keys_read, 16u + 16 + 9);  // sink, planted, last
  const Row row = {0, 200, 0};
  ThreadPool pool(1);
  Selection selection;
  policy.select({0, Phase::kDecode, {&row, 1}, q.data(), q.data(), 200, &kv, &pool}, selection);
  std::vector<KeyRange> want = {{0, 16}, {64, 80}, {192, 201}};
  ASSERT_EQ(selection.parts.size(), 1u);
  const auto list = selection.parts[0].list(0);
  ASSERT_EQ(list.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(list[i].begin, want[i].begin);
    EXPECT_EQ(list[i].end, want[i].end);
  }
}

TEST(Quest, BoundsFollowATruncatedAndForkedSequence) {
  Toy toy({2, 4, 2, 32}, 300);
  QuestPolicy policy({64, 0}, toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 250, Phase::kPrefill);
  const auto copy = policy.fork();
  SequenceKv copy_kv = kv;
  for (int i = 0; i < 40; ++i) toy.step(kv, policy, 1, Phase::kDecode);
  policy.truncate(130);
  kv.truncate(130);
  copy->truncate(130);
  copy_kv.truncate(130);
  QuestPolicy fresh({64, 0}, toy.config());
  SequenceKv fresh_kv = toy.new_sequence();
  toy.step(fresh_kv, fresh, 130, Phase::kPrefill);
  for (int i = 0; i < 50; ++i) {
    const auto want = toy.step(fresh_kv, fresh, 1, Phase::kDecode);
    EXPECT_EQ(toy.step(kv, policy, 1, Phase::kDecode), want) << i;
    EXPECT_EQ(toy.step(copy_kv, *copy, 1, Phase::kDecode), want) << i;
  }
}

TEST(Random, DependsOnItsSeedAndReadsItsBudget) {
  Toy toy({1, 4, 2, 32}, 400);
  const auto decoded = [&](uint32_t seed) {
    RandomPolicy policy({64, seed}, toy.config());
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 398, Phase::kPrefill);
    const auto out = toy.step(kv, policy, 1, Phase::kDecode);
    EXPECT_EQ(toy.executor().cost(0).keys_read, 2u * (48 + 15));
    EXPECT_EQ(toy.executor().cost(0).kv_bytes_read, 4 * kv.pool().page_bytes());
    return out;
  };
  EXPECT_EQ(decoded(1), decoded(1));
  EXPECT_NE(decoded(1), decoded(2));
}

}  // namespace
}  // namespace reprise

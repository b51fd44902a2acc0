#include "methods/baselines/sparq.h"

#include <gtest/gtest.h>

#include <numeric>

#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Recorder;
using testing::Toy;
using testing::ToyShape;

struct Expected {
  std::vector<double> scores;                // [keys] summed over the group
  std::vector<std::vector<double>> weights;  // [group][keys]
};

/// Algorithm 1 of the paper for one KV head, in double, over pairs of channels.
Expected sparq(const Toy& toy, const SequenceKv& kv, const float* q, size_t kv_head, size_t pairs,
               bool raw) {
  const ModelConfig& config = toy.config();
  const size_t dim = config.head_dim, group = config.n_head / config.n_kv_head;
  std::vector<double> size(dim / 2);
  for (size_t i = 0; i < group * dim; ++i) size[i % dim / 2] += std::abs(double{q[i]});
  std::vector<size_t> order(dim / 2);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return size[a] > size[b]; });
  order.resize(pairs);
  Expected expected;
  const auto length = static_cast<size_t>(kv.length());
  expected.scores.resize(length);
  for (size_t head = 0; head < group; ++head) {
    const float* row = q + head * dim;
    double all = 0.0, held = 0.0;
    for (size_t d = 0; d < dim; ++d) all += std::abs(double{row[d]});
    for (const size_t pair : order) held += std::abs(row[2 * pair]) + std::abs(row[2 * pair + 1]);
    std::vector<double> logits;
    double total = 0.0;
    for (size_t key = 0; key < length; ++key) {
      const auto k = testing::stored(kv, 0, kv_head, static_cast<int32_t>(key));
      double sum = 0.0;
      for (const size_t pair : order) sum += testing::dot(row + 2 * pair, &k[2 * pair], 2);
      logits.push_back(sum / std::sqrt(double(dim) * held / all));
      total += std::exp(logits.back());
    }
    auto& weights = expected.weights.emplace_back();
    for (size_t key = 0; key < length; ++key) {
      weights.push_back(std::exp(logits[key]) / total);
      expected.scores[key] += raw ? logits[key] : weights[key];
    }
  }
  return expected;
}

struct Case {
  ToyShape shape;
  uint32_t channels;
  const char* score;
};

class Sparq : public ::testing::TestWithParam<Case> {};

TEST_P(Sparq, SetsAndAlphaMatchTheDefinition) {
  const auto& [shape, channels, score] = GetParam();
  constexpr int32_t kBudget = 40, kLocal = 10;
  Toy toy(shape, 260);
  const SparqOptions options = {kBudget, channels, kLocal, true, score};
  Recorder policy(std::make_unique<SparqPolicy>(options, toy.config()), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  const size_t pairs = (channels > 0 ? channels : shape.head_dim / 4) / 2;
  const size_t group = shape.n_head / shape.n_kv_head;
  for (int step = 0; step < 60; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    const auto& [selection, q] = policy.seen[0];
    const int32_t recent = kv.length() - kLocal;
    for (size_t head = 0; head < shape.n_kv_head; ++head) {
      const auto keys = testing::keys_of(selection.parts[0], head);
      ASSERT_EQ(keys.size(), size_t{kBudget});
      for (int32_t i = 0; i < kLocal; ++i) {
        ASSERT_EQ(keys[static_cast<size_t>(kBudget - kLocal + i)], recent + i);
      }
      const auto want = sparq(toy, kv, &q[head * group * shape.head_dim], head, pairs,
                              std::string_view(score) == "raw");
      testing::expect_best(std::span(keys).first(kBudget - kLocal),
                           std::span(want.scores).first(static_cast<size_t>(recent)),
                           kBudget - kLocal, 1e-5);
      for (size_t r = 0; r < group; ++r) {
        double alpha = 0.0;
        for (const int32_t key : keys) alpha += want.weights[r][static_cast<size_t>(key)];
        ASSERT_NEAR(selection.mean.alpha[head * group + r], alpha, 1e-5);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Sparq,
                         ::testing::Values(Case{{1, 2, 2, 64}, 0, "softmax"},
                                           Case{{1, 6, 2, 80}, 20, "softmax"},
                                           Case{{1, 9, 1, 128}, 32, "raw"},
                                           Case{{1, 9, 3, 64, KvType::kBF16}, 16, "raw"},
                                           Case{{1, 4, 2, 64, KvType::kQ8_0}, 2, "softmax"},
                                           Case{{1, 4, 2, 64, KvType::kBF12}, 2, "softmax"},
                                           Case{{1, 6, 2, 80, KvType::kF16}, 80, "softmax"}));

TEST(Sparq, AllChannelsGiveTheExactBestKeys) {
  Toy toy({1, 3, 1, 64}, 201);
  Recorder policy(toy, "sparq:budget=32,local=1,channels=64");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  toy.step(kv, policy, 1, Phase::kDecode);
  std::vector<int32_t> every(201);
  std::iota(every.begin(), every.end(), 0);
  std::vector<double> sums(201);
  for (size_t head = 0; head < 3; ++head) {
    const auto shares =
        testing::weights(toy, kv, 0, &policy.seen[0].q_rotated[head * 64], 0, every);
    for (size_t key = 0; key < 201; ++key) sums[key] += shares[key];
  }
  const auto keys = testing::keys_of(policy.seen[0].selection.parts[0], 0);
  testing::expect_best(std::span(keys).first(31), std::span(sums).first(200), 31, 1e-6);
}

TEST(Sparq, TheMeanIsThatOfAllValuesAfterAnyHistory) {
  Toy toy({1, 4, 2, 32}, 300);
  toy.prompt_end = 200;
  Recorder policy(toy, "sparq:budget=32");
  SequenceKv kv = toy.new_sequence();
  for (const size_t chunk : {7, 93, 100}) toy.step(kv, policy, chunk, Phase::kPrefill);
  for (int i = 0; i < 20; ++i) toy.step(kv, policy, 1, Phase::kDecode);
  policy.truncate(150);
  kv.truncate(150);
  for (int i = 0; i < 70; ++i) toy.step(kv, policy, 1, Phase::kDecode);
  for (size_t head = 0; head < 2; ++head) {
    for (size_t d = 0; d < 32; ++d) {
      double sum = 0.0;
      for (int32_t key = 0; key < 220; ++key) sum += testing::stored(kv, 0, head, key, true)[d];
      EXPECT_NEAR(policy.seen[0].selection.mean.value[head * 32 + d], sum / 220, 1e-6);
    }
  }
}

TEST(Sparq, IndexBytesAreTheLinesOfTheChannels) {
  // 201 tokens are 13 pages of 2 KV heads; 8 channels are 4 pairs of dims.
  const auto bytes = [](KvType type, uint32_t channels) {
    Toy toy({1, 4, 2, 64, type}, 201);
    const auto policy = testing::make_policy(
        toy, "sparq:channels=" + std::to_string(channels) + ",budget=32,local=8");
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, *policy, 200, Phase::kPrefill);
    toy.step(kv, *policy, 1, Phase::kDecode);
    return toy.executor().cost(0).index_bytes_read;
  };
  EXPECT_EQ(bytes(KvType::kBF16, 8), 13u * 2 * 4 * 64);
  EXPECT_EQ(bytes(KvType::kF32, 8), 13u * 2 * 4 * 128);
  EXPECT_EQ(bytes(KvType::kQ8_0, 64), 13u * 2 * (64 * 16 + 2 * 64));  // the whole tile
  EXPECT_EQ(bytes(KvType::kBF12, 64), 13u * 2 * (64 * 16 * 3 / 2 + 64));
}

}  // namespace
}  // namespace reprise

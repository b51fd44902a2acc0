#include "methods/baselines/infllm.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/ops.h"
#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::decode;
using testing::Recorder;
using testing::Toy;
using testing::ToyShape;

constexpr InfLlmOptions kOptions = {20, 64, 3, 24, 4};
constexpr const char* kSpec = "infllm:init=20,local=64,blocks=3,block=24";

std::vector<float> at_position(const Toy& toy, const float* x, size_t position) {
  std::vector<float> cos_sin(toy.rope().pairs() * 2), row(x, x + toy.config().head_dim);
  toy.rope().cos_sin(static_cast<int32_t>(position), cos_sin.data());
  kernels::rope(row.data(), cos_sin.data(), 1, row.size(), toy.rope().pairs());
  return row;
}

/// Attention of a query head over a far and a near part, in double.
std::vector<double> expected(Toy& toy, size_t layer, size_t token, size_t head,
                             const Selection& selection) {
  const ModelConfig& config = toy.config();
  const size_t dim = config.head_dim, kv_head = head / (config.n_head / config.n_kv_head);
  const float* q = toy.q(layer, token) + head * dim;
  std::vector<double> out(dim);
  double total = 0.0;
  for (const SelectionPart& part : selection.parts) {
    const bool far = !part.rotate_keys;
    const auto query = at_position(toy, q, far ? kOptions.local : token);
    for (const int32_t index : testing::keys_of(part, 0)) {
      const auto key = static_cast<size_t>(index);
      if (key > token) continue;
      const float* k = toy.k(layer, key) + kv_head * dim;
      const auto row = far ? std::vector<float>(k, k + dim) : at_position(toy, k, key);
      const double weight =
          std::exp(testing::dot(query.data(), row.data(), dim) * config.attention_scale);
      total += weight;
      for (size_t d = 0; d < dim; ++d) {
        out[d] += weight * toy.v(layer, key)[kv_head * dim + d];
      }
    }
  }
  for (double& value : out) value /= total;
  return out;
}

class InfLlm : public ::testing::TestWithParam<ToyShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, InfLlm,
                         ::testing::Values(ToyShape{2, 2, 2, 64}, ToyShape{2, 6, 2, 80},
                                           ToyShape{2, 9, 1, 128}));

TEST_P(InfLlm, PrefillAndDecodeMatchTheDefinition) {
  Toy toy(GetParam(), 330);
  Recorder policy(toy, kSpec);
  SequenceKv kv = toy.new_sequence();
  const size_t heads = toy.config().n_head, dim = toy.config().head_dim;
  size_t token = 0;
  for (const size_t count : {100, 70, 50, 90, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}) {
    const auto out = toy.step(kv, policy, count, count > 1 ? Phase::kPrefill : Phase::kDecode);
    const Selection& selection = policy.seen[1].selection;
    EXPECT_EQ(selection.all, token + 1 <= 20 + 64);
    for (size_t i = 0; i < count && !selection.all; i += 11) {
      for (size_t head = 0; head < heads; ++head) {
        const auto want = expected(toy, 1, token + i, head, selection);
        for (size_t d = 0; d < dim; ++d) {
          ASSERT_NEAR(out[((count + i) * heads + head) * dim + d], want[d],
                      testing::kFloatTolerance);
        }
      }
    }
    token += count;
  }
}

TEST_P(InfLlm, ReadsInitBlocksAndWindowOnce) {
  Toy toy(GetParam(), 400);
  Recorder policy(toy, kSpec);
  SequenceKv kv = toy.new_sequence();
  for (const size_t chunk : {90, 110, 130}) toy.step(kv, policy, chunk, Phase::kPrefill);
  for (int i = 0; i < 60; ++i) {
    toy.step(kv, policy, 1, Phase::kDecode);
    const Selection& selection = policy.seen[0].selection;
    const auto far = testing::keys_of(selection.parts[0], 0);
    const auto near = testing::keys_of(selection.parts[1], 0);
    EXPECT_EQ(far.size(), 20u + 3 * 24);
    EXPECT_EQ(far[19], 19);
    for (size_t key = 20; key < far.size(); key += 24) {
      EXPECT_EQ((far[key] - 20) % 24, 0);
      EXPECT_EQ(far[key + 23], far[key] + 23);
    }
    EXPECT_LT(far.back(), near.front());
    EXPECT_EQ(near.back(), kv.length() - 1);
    EXPECT_GE(near.size(), 64u);
    EXPECT_LT(near.size(), 64u + 24);
    EXPECT_EQ(static_cast<size_t>(near.back() - near.front()) + 1, near.size());
    EXPECT_EQ(toy.executor().cost(0).keys_read,
              2u * toy.config().n_kv_head * (far.size() + near.size()));
  }
}

TEST(InfLlmPolicy, EqualsFullAttentionWhileInitAndWindowHoldEverything) {
  for (const size_t length : {1, 15, 16, 17, 64, 83, 84}) {
    Toy toy({2, 4, 2, 32}, length);
    const auto policy = testing::make_policy(toy, kSpec);
    const auto full = testing::make_policy(toy, "full:keys=position-free");
    SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
    if (length > 1) {
      ASSERT_EQ(toy.step(a, *policy, length - 1, Phase::kPrefill),
                toy.step(b, *full, length - 1, Phase::kPrefill));
    }
    ASSERT_EQ(toy.step(a, *policy, 1, Phase::kDecode), toy.step(b, *full, 1, Phase::kDecode));
  }
}

/// The representatives of a layer by their definition, in double.
std::vector<double> representatives(Toy& toy, size_t layer, const BlockMemoryOptions& o,
                                    size_t blocks) {
  const ModelConfig& config = toy.config();
  const size_t dim = config.head_dim, group = config.n_head / config.n_kv_head;
  std::vector<double> means(blocks * config.n_kv_head * dim);
  const size_t length = static_cast<size_t>(o.init + o.local) + blocks * o.block;
  for (size_t kv_head = 0; kv_head < config.n_kv_head; ++kv_head) {
    std::vector<double> received(length);
    for (size_t position = 15; position < length; position += 16) {
      for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const auto q = at_position(toy, toy.q(layer, position) + head * dim, position);
        const size_t begin = position + 1 > size_t(o.local) ? position + 1 - o.local : 0;
        std::vector<double> weights(position + 1);
        for (size_t key = begin; key <= position; ++key) {
          const auto k = at_position(toy, toy.k(layer, key) + kv_head * dim, key);
          weights[key] = std::exp(testing::dot(q.data(), k.data(), dim) * config.attention_scale);
        }
        const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (size_t key = begin; key <= position; ++key) received[key] += weights[key] / total;
      }
    }
    for (size_t block = 0; block < blocks; ++block) {
      std::vector<size_t> order(static_cast<size_t>(o.block));
      std::iota(order.begin(), order.end(), o.init + block * o.block);
      std::sort(order.begin(), order.end(),
                [&](size_t a, size_t b) { return received[a] > received[b]; });
      for (int i = 0; i < o.representatives; ++i) {
        const float* k = toy.k(layer, order[static_cast<size_t>(i)]) + kv_head * dim;
        for (size_t d = 0; d < dim; ++d) {
          means[(block * config.n_kv_head + kv_head) * dim + d] += k[d] / o.representatives;
        }
      }
    }
  }
  return means;
}

TEST_P(InfLlm, RepresentativesMatchTheDefinitionWhateverTheCalls) {
  const BlockMemoryOptions options = {20, 24, 64, 4};
  Toy toy(GetParam(), 330);
  const auto full = testing::make_policy(toy, "full:keys=position-free");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *full, 330, Phase::kPrefill);
  ThreadPool pool(2);
  const auto blocks = static_cast<size_t>(BlockMemory(options, toy.config()).blocks_at(329));
  ASSERT_GT(blocks, 5u);
  const auto want = representatives(toy, 0, options, blocks);
  for (const std::vector<int32_t>& calls :
       std::vector<std::vector<int32_t>>{{0, 329}, {0, 1, 50, 51, 170, 329}, {0, 16, 160, 329}}) {
    BlockMemory memory(options, toy.config());
    for (size_t call = 0; call < calls.size(); ++call) {
      const int32_t first = calls[call], end = call + 1 < calls.size() ? calls[call + 1] : 330;
      std::vector<Row> rows;
      for (int32_t position = first; position < end; ++position) rows.push_back({0, position, 0});
      memory.update(
          {0, Phase::kPrefill, rows, toy.q(0, static_cast<size_t>(first)), nullptr, 0, &kv, &pool});
    }
    const auto got = memory.representatives(0);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
  }
}

TEST_P(InfLlm, BlocksAreTheNearestOnesToTheMeanQuery) {
  const BlockMemoryOptions options = {20, 24, 64, 4};
  Toy toy(GetParam(), 330);
  Recorder policy(toy, kSpec);
  SequenceKv kv = toy.new_sequence();
  for (const size_t chunk : {200, 100}) toy.step(kv, policy, chunk, Phase::kPrefill);
  const ModelConfig& config = toy.config();
  const size_t dim = config.head_dim, blocks = (201 - 64 - 20) / 24;
  const auto keys = representatives(toy, 0, options, blocks);
  std::vector<double> scores(blocks);
  for (size_t block = 0; block < blocks; ++block) {
    for (size_t row = 200; row < 300; ++row) {
      for (size_t head = 0; head < config.n_head; ++head) {
        const auto q = at_position(toy, toy.q(0, row) + head * dim, 64);
        const size_t kv_head = head / (config.n_head / config.n_kv_head);
        for (size_t d = 0; d < dim; ++d) {
          scores[block] += q[d] * keys[(block * config.n_kv_head + kv_head) * dim + d] / 100;
        }
      }
    }
  }
  const auto far = testing::keys_of(policy.seen[0].selection.parts[0], 0);
  std::vector<int32_t> picks;
  for (size_t key = 20; key < far.size(); key += 24) picks.push_back((far[key] - 20) / 24);
  testing::expect_best(picks, scores, 3, 1e-4);
}

TEST(InfLlmPolicy, DecodingDoesNotDependOnThreadsOrEarlierChunks) {
  const auto run = [](std::vector<size_t> chunks, int threads) {
    Toy toy({2, 6, 2, 32, KvType::kBF16}, 400, threads);
    const auto policy = testing::make_policy(toy, kSpec);
    SequenceKv kv = toy.new_sequence();
    for (const size_t chunk : chunks) toy.step(kv, *policy, chunk, Phase::kPrefill);
    return decode(toy, *policy, kv, 100);
  };
  const auto want = run({300}, 1);
  EXPECT_EQ(run({300}, 3), want);
  EXPECT_EQ(run({1, 150, 149}, 2), want);
}

TEST(InfLlmPolicy, ForksAndTruncatedSequencesGoOnAsIfAlone) {
  Toy toy({2, 6, 2, 32}, 400);
  const auto policy = testing::make_policy(toy, kSpec), fresh = testing::make_policy(toy, kSpec);
  SequenceKv kv = toy.new_sequence(), fresh_kv = toy.new_sequence();
  toy.step(kv, *policy, 250, Phase::kPrefill);
  const auto copy = policy->fork();
  SequenceKv copy_kv = kv;
  decode(toy, *policy, kv, 70);
  policy->truncate(170);
  kv.truncate(170);
  copy->truncate(170);
  copy_kv.truncate(170);
  testing::change_tokens(toy, 170, 320);
  toy.step(fresh_kv, *fresh, 170, Phase::kPrefill);
  const auto want = decode(toy, *fresh, fresh_kv, 150);
  EXPECT_EQ(decode(toy, *policy, kv, 150), want);
  EXPECT_EQ(decode(toy, *copy, copy_kv, 150), want);
}

}  // namespace
}  // namespace reprise

// MAC-Attention over CSAttention: what is not reused is read through the index.
#include <gtest/gtest.h>

#include <set>

#include "methods/mac_testing.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Recorder;
using testing::repeat_query;
using testing::Toy;
using Keys = std::set<int32_t>;

constexpr size_t kPrompt = 400, kTokens = 460;
constexpr MacCut kCut = {8, 32, 16};
const std::string kIndex = "csattention:budget=96,window=32,observe=64";

/// Records what the inner policy chooses and what is read.
Recorder over_index(const Toy& toy) {
  MacOptions options;
  options.min_context = 0;
  options.window = 64;
  options.sink = static_cast<uint32_t>(kCut.sink);
  options.band = static_cast<uint32_t>(kCut.band);
  options.align = static_cast<uint32_t>(kCut.align);
  options.tau = 0.9f;
  options.guard = false;
  auto inner = std::make_unique<Recorder>(toy, kIndex);
  return {std::make_unique<MacPolicy>(options, toy.config(), std::move(inner)), toy.config()};
}

const Selection& chosen(const Recorder& policy) {
  const auto& mac = static_cast<const MacPolicy&>(policy.wrapped());
  return static_cast<const Recorder&>(mac.wrapped()).seen.at(0).selection;
}

/// What a query head reads; no key by two parts.
Keys keys_of(const Selection& selection, const ModelConfig& config, size_t head) {
  Keys keys;
  for (const SelectionPart& part : selection.parts) {
    const int32_t begin = part.head_begin.empty() ? 0 : part.head_begin[head];
    for (const int32_t key : testing::keys_of(part, testing::list_of(part, config, head))) {
      if (key < begin) continue;
      EXPECT_TRUE(keys.insert(key).second) << key;
    }
  }
  return keys;
}

void add(KeyRange range, Keys& keys) {
  for (int32_t key = range.begin; key < range.end; ++key) keys.insert(key);
}

/// Of a query head: attention over these keys alone, in double.
void expect_output(const Toy& toy, const SequenceKv& kv, const Recorder& policy, size_t head,
                   const Keys& of, std::span<const float> out) {
  const size_t dim = toy.config().head_dim, kv_head = head / 2;
  const std::vector<int32_t> keys(of.begin(), of.end());
  const auto shares =
      testing::weights(toy, kv, 0, &policy.seen.at(0).q_rotated[head * dim], kv_head, keys);
  std::vector<double> want(dim);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto value = testing::stored(kv, 0, kv_head, keys[i], true);
    for (size_t d = 0; d < dim; ++d) want[d] += shares[i] * value[d];
  }
  for (size_t d = 0; d < dim; ++d) {
    ASSERT_NEAR(out[head * dim + d], want[d], testing::kFloatTolerance) << head;
  }
}

TEST(MacOverCsAttention, MissesReadWhatTheIndexChoseAndHitsTheirTail) {
  Toy toy({1, 4, 2, 32, KvType::kF32}, kTokens);
  // Query heads of the first KV head repeat, those of the other one do not.
  for (size_t token = kPrompt; token < kTokens; ++token) repeat_query(toy, token, 395, 0, 2);
  Recorder policy = over_index(toy);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, kPrompt, Phase::kPrefill);
  Keys all_chosen;
  for (int32_t position = kPrompt; position < static_cast<int32_t>(kTokens); ++position) {
    SCOPED_TRACE(position);
    const std::vector<float> out = toy.step(kv, policy, 1, Phase::kDecode);
    const Selection &read = policy.seen.at(0).selection, &given = chosen(policy);
    ASSERT_FALSE(given.all);
    Keys fresh, tail, index;
    add({0, kCut.sink}, fresh);
    add({kCut.at(position), position + 1}, fresh);
    tail = index = fresh;
    // The newest of equal queries: of the row before, but for the first one.
    add({kCut.at(position == kPrompt ? 395 : position - 1), position + 1}, tail);
    for (const int32_t key : keys_of(given, toy.config(), 2)) {
      all_chosen.insert(key);
      if (key >= kCut.sink && key < kCut.at(position)) index.insert(key);
    }
    for (const size_t head : {0, 1}) EXPECT_EQ(keys_of(read, toy.config(), head), tail);
    for (const size_t head : {2, 3}) {
      EXPECT_EQ(keys_of(read, toy.config(), head), index);
      expect_output(toy, kv, policy, head, index, out);
    }
    EXPECT_LT(index.size(), 192u);
  }
  EXPECT_GT(all_chosen.size(), 200u);  // other keys for other queries
  EXPECT_EQ(testing::figure(policy, "mac_group_hits"), 0.5);
}

TEST(MacOverCsAttention, AfterARunOfHitsTheIndexIsThatOfEveryStep) {
  Toy toy({1, 4, 2, 32, KvType::kF32}, kTokens);
  for (size_t token = kPrompt; token + 1 < kTokens; ++token) repeat_query(toy, token, 395);
  Recorder policy = over_index(toy), alone(toy, kIndex);
  SequenceKv kv = toy.new_sequence(), alone_kv = toy.new_sequence();
  toy.step(kv, policy, kPrompt, Phase::kPrefill);
  toy.step(alone_kv, alone, kPrompt, Phase::kPrefill);
  for (size_t token = kPrompt; token < kTokens; ++token) {
    toy.step(kv, policy, 1, Phase::kDecode);
    toy.step(alone_kv, alone, 1, Phase::kDecode);
  }
  EXPECT_EQ(testing::figure(policy, "mac_group_hits"), 59.0 / 60);
  for (const size_t head : {0, 2}) {
    EXPECT_EQ(keys_of(chosen(policy), toy.config(), head),
              keys_of(alone.seen.at(0).selection, toy.config(), head));
  }
}

}  // namespace
}  // namespace reprise

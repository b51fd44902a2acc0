// What holds for every registered policy: with room for all keys it equals full attention bit by
// bit, with less room it reads less, and forks, threads and truncation change nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention/toy.h"
#include "methods/registry.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Toy;
using testing::ToyShape;

/// A spec that gives the policy room for keys tokens; small ones make it leave keys out.
std::string spec_with_room(const PolicyEntry& entry, size_t keys) {
  for (const auto* room : {"budget", "window", "local"}) {
    for (const OptionInfo& option : entry.options) {
      if (option.name != room) continue;
      // Spans of 32 keys come on top of its window.
      const auto spans = entry.name == "reattention" ? fmt::format(",spans={}", keys / 32) : "";
      return fmt::format("{}:{}={}{}", entry.name, room, keys, spans);
    }
  }
  return std::string(entry.name);
}

std::vector<const PolicyEntry*> selecting_policies() {
  std::vector<const PolicyEntry*> found;
  for (const PolicyEntry& entry : policy_entries()) {
    if (!entry.decorator && entry.name != "full") found.push_back(&entry);
  }
  return found;
}

using Outputs = std::vector<std::vector<float>>;

/// A prompt in two chunks, then decoded tokens.
Outputs run(Toy& toy, Policy& policy, size_t prompt, size_t decoded) {
  SequenceKv kv = toy.new_sequence();
  Outputs outputs;
  toy.prompt_end = static_cast<int32_t>(prompt);
  for (const size_t chunk : {prompt / 3, prompt - prompt / 3}) {
    if (chunk > 0) outputs.push_back(toy.step(kv, policy, chunk, Phase::kPrefill));
  }
  for (size_t i = 0; i < decoded; ++i) {
    outputs.push_back(toy.step(kv, policy, 1, Phase::kDecode));
  }
  return outputs;
}

Outputs run(Toy& toy, std::string_view spec, size_t prompt, size_t decoded) {
  auto policy = create_policy(policy_entries(), spec, toy.config());
  EXPECT_TRUE(policy) << spec << ": " << policy.error().message;
  return run(toy, **policy, prompt, decoded);
}

struct LadderCase {
  ToyShape shape;
  size_t prompt;
};

class Ladder : public ::testing::TestWithParam<LadderCase> {};

TEST_P(Ladder, RoomForEveryKeyEqualsFullAttention) {
  const auto& [shape, prompt] = GetParam();
  Toy toy(shape, prompt + 24);
  const Outputs rotated = run(toy, "full", prompt, 24);
  const Outputs position_free = run(toy, "full:keys=position-free", prompt, 24);
  for (const PolicyEntry* entry : selecting_policies()) {
    const std::string spec = spec_with_room(*entry, 1 << 14);
    auto policy = create_policy(policy_entries(), spec, toy.config());
    ASSERT_TRUE(policy) << spec;
    const Outputs& full = (*policy)->position_free() ? position_free : rotated;
    EXPECT_TRUE(run(toy, spec, prompt, 24) == full) << spec;
    EXPECT_TRUE(run(toy, "dense:first=1+" + spec, prompt, 24) == full) << spec;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Ladder,
                         ::testing::Values(LadderCase{{2, 4, 2, 32, KvType::kF32}, 1},
                                           LadderCase{{2, 4, 2, 32, KvType::kF32}, 15},
                                           LadderCase{{1, 9, 3, 64, KvType::kBF16}, 16},
                                           LadderCase{{1, 9, 3, 64, KvType::kBF16}, 200},
                                           LadderCase{{2, 4, 4, 80, KvType::kF16}, 17},
                                           LadderCase{{2, 8, 1, 128, KvType::kQ8_0}, 130},
                                           LadderCase{{1, 9, 3, 64, KvType::kBF12}, 200},
                                           LadderCase{{3, 4, 2, 32, KvType::kBF16, 64, 30.0f},
                                                      150}));

TEST(EveryPolicy, ReadsLessWithASmallBudget) {
  for (const PolicyEntry* entry : selecting_policies()) {
    Toy toy({1, 4, 2, 32, KvType::kBF16}, 1500);
    const std::string spec = spec_with_room(*entry, 128);
    run(toy, spec, 1400, 20);
    const StepCost& cost = toy.executor().cost(0);
    EXPECT_LT(cost.keys_read, cost.keys_visible * 3 / 4) << spec;
    EXPECT_LE(cost.kv_bytes_read, cost.full_kv_bytes) << spec;
  }
}

TEST(EveryPolicy, ThreadsDoNotChangeABit) {
  for (const PolicyEntry* entry : selecting_policies()) {
    const std::string spec = spec_with_room(*entry, 96);
    Toy one({2, 6, 2, 32, KvType::kBF16}, 500, 1), four({2, 6, 2, 32, KvType::kBF16}, 500, 4);
    EXPECT_TRUE(run(one, spec, 470, 30) == run(four, spec, 470, 30)) << spec;
  }
}

TEST(EveryPolicy, AForkGoesOnAsTheOriginal) {
  for (const PolicyEntry* entry : selecting_policies()) {
    const std::string spec = spec_with_room(*entry, 96);
    Toy toy({2, 4, 2, 32, KvType::kBF16}, 500);
    auto policy = create_policy(policy_entries(), spec, toy.config());
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, **policy, 400, Phase::kPrefill);
    toy.prompt_end = 400;
    for (int i = 0; i < 10; ++i) toy.step(kv, **policy, 1, Phase::kDecode);
    const auto copy = (*policy)->fork();
    SequenceKv copy_kv = kv;
    Outputs original, forked;
    for (int i = 0; i < 40; ++i) original.push_back(toy.step(kv, **policy, 1, Phase::kDecode));
    for (int i = 0; i < 40; ++i) forked.push_back(toy.step(copy_kv, *copy, 1, Phase::kDecode));
    EXPECT_TRUE(original == forked) << spec;
  }
}

}  // namespace
}  // namespace reprise

// The state of MAC-Attention over long sequences, forks and cuts.
#include <gtest/gtest.h>

#include "methods/mac_toy.h"
#include "methods/policy_laws.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::decode;
using testing::make_policy;
using testing::Outputs;
using testing::repeat_queries;
using testing::Toy;
using testing::ToyShape;

const std::string& kMac = testing::kEarlyMac;

double stat(const Policy& policy, const std::string& name) {
  return testing::stats_of(policy).at(name);
}

TEST(MacState, ThreadsDoNotChangeABit) {
  for (const std::string& spec : {kMac, kMac + ",mixed=split+quest:budget=96"}) {
    Outputs want;
    for (const int threads : {1, 2, 5}) {
      Toy toy({2, 6, 2, 32, KvType::kBF16}, 360, threads);
      repeat_queries(toy, 300, 360, 17);
      const auto policy = make_policy(toy, spec);
      SequenceKv kv = toy.new_sequence();
      toy.step(kv, *policy, 300, Phase::kPrefill);
      const Outputs got = decode(toy, *policy, kv, 60);
      EXPECT_GT(stat(*policy, "mac_group_hits"), 0.9);
      if (threads == 1) want = got;
      EXPECT_TRUE(got == want) << spec << " " << threads;
    }
  }
}

TEST(MacState, AForkGoesOnAsTheOriginalAndLeavesItAlone) {
  Toy toy({2, 4, 2, 32, KvType::kBF16}, 400);
  repeat_queries(toy, 300, 400, 13);
  const auto policy = make_policy(toy, kMac);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 300, Phase::kPrefill);
  decode(toy, *policy, kv, 20);
  const auto copy = policy->fork(), other = policy->fork();
  SequenceKv copy_kv = kv, other_kv = kv;
  testing::change_tokens(toy, 320, 360);  // other tokens go through the other fork
  decode(toy, *other, other_kv, 40);
  testing::change_tokens(toy, 320, 360);  // undone
  const Outputs original = decode(toy, *policy, kv, 60);
  EXPECT_TRUE(decode(toy, *copy, copy_kv, 60) == original);
  EXPECT_GT(stat(*policy, "mac_group_hits"), 0.9);
}

TEST(MacState, SavedRingsGoOnAsTheOriginal) {
  for (const std::string& spec :
       {kMac, kMac + ",tau=0.3+quest:budget=96", kMac + ",ring=q8_0,lse_fix=true,layers=true"}) {
    Toy toy({2, 4, 2, 32, KvType::kBF16, 64}, 400);  // of which the first layer has no ring
    repeat_queries(toy, 280, 400, 13);
    const auto policy = make_policy(toy, spec), restored = make_policy(toy, spec);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, *policy, 300, Phase::kPrefill);
    decode(toy, *policy, kv, 30);
    const std::string state = policy->save_state();
    ASSERT_TRUE(restored->restore_state(state, 330));
    EXPECT_EQ(restored->save_state(), state);
    SequenceKv again = kv;
    policy->clear_stats();
    EXPECT_TRUE(decode(toy, *restored, again, 64) == decode(toy, *policy, kv, 64)) << spec;
    EXPECT_EQ(stat(*restored, "mac_skipped"), stat(*policy, "mac_skipped"));
    EXPECT_GT(stat(*policy, "mac_group_hits"), 0.5);
  }
}

TEST(MacState, SequencesShareTheMemoryOfRings) {
  Toy toy({2, 4, 2, 32, KvType::kBF16, 64}, 400);  // of which the first layer has no ring
  repeat_queries(toy, 280, 400, 13);
  const auto full = make_policy(toy, "full"), free = make_policy(toy, kMac);
  const auto answer = [&](Policy& policy) {
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 300, Phase::kPrefill);
    return decode(toy, policy, kv, 30);
  };
  const Outputs dense = answer(*full), reused = answer(*free);
  const uint64_t ring = free->state_bytes();
  const auto spec = [&](uint64_t bytes) { return kMac + ",ring_memory=" + std::to_string(bytes); };
  const auto small = make_policy(toy, spec(ring - 1));
  EXPECT_TRUE(answer(*small) == dense);
  EXPECT_EQ(small->state_bytes(), 0u);
  EXPECT_EQ(stat(*small, "mac_ringless"), 64.0 + 30.0);  // a window of the prompt, and the answer
  EXPECT_EQ(small->observed_prompt_rows(350, 330), 0);   // no row is read anew for no ring
  EXPECT_EQ(make_policy(toy, spec(ring - 1) + ",prefill=reuse")->observed_prompt_rows(350, 330), 0);

  auto one = make_policy(toy, spec(ring * 3 / 2));
  const auto two = make_policy(toy, spec(ring * 3 / 2));
  EXPECT_TRUE(answer(*one) == reused);
  EXPECT_EQ(stat(*one, "mac_ringless"), 0.0);
  EXPECT_EQ(one->observed_prompt_rows(350, 330), 20);
  EXPECT_EQ(two->observed_prompt_rows(350, 330), 0);
  EXPECT_TRUE(answer(*two) == dense);
  EXPECT_EQ(one->fork()->state_bytes(), 0u);
  EXPECT_TRUE(two->restore_state(one->save_state(), 330));
  EXPECT_EQ(two->state_bytes(), 0u);
  const std::string state = one->save_state();
  EXPECT_TRUE(one->restore_state(state, 330));  // into the room that it has
  EXPECT_EQ(one->state_bytes(), ring);
  one.reset();  // and gives back what it had
  EXPECT_EQ(two->observed_prompt_rows(350, 330), 64);
  EXPECT_TRUE(two->restore_state(state, 330));
  EXPECT_EQ(two->state_bytes(), ring);
  const auto four = make_policy(toy, spec(ring * 4));
  EXPECT_TRUE(answer(*four) == reused);
  EXPECT_EQ(four->fork()->state_bytes(), ring);
}

TEST(MacState, WhatIsNoRingIsRefused) {
  testing::expect_state_is_checked(kMac);
  Toy toy({2, 4, 2, 32, KvType::kBF16}, 401);
  const auto policy = make_policy(toy, kMac);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 400, Phase::kPrefill);
  const std::string state = policy->save_state();
  const auto other = make_policy(toy, kMac);
  EXPECT_FALSE(other->restore_state(state, 399));  // of more tokens than there are
  EXPECT_TRUE(other->restore_state(state, 400));
  EXPECT_FALSE(make_policy(toy, kMac + "+csattention")->restore_state(state, 400));
}

TEST(MacState, OnlyRowsThatARingLacksAreWanted) {
  Toy toy({2, 4, 2, 32, KvType::kBF16}, 460);
  const auto policy = make_policy(toy, kMac);
  EXPECT_EQ(policy->observed_prompt_rows(500, 400), 64);
  EXPECT_EQ(policy->observed_prompt_rows(30, 0), 30);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 400, Phase::kPrefill);
  EXPECT_EQ(policy->observed_prompt_rows(410, 400), 10);
  EXPECT_EQ(policy->observed_prompt_rows(500, 400), 64);
  EXPECT_EQ(policy->observed_prompt_rows(410, 390), 20);
  policy->truncate(380);
  EXPECT_EQ(policy->observed_prompt_rows(390, 380), 64);  // older entries have been overwritten
  const auto late = make_policy(toy, "mac:min_context=9999");
  EXPECT_EQ(late->observed_prompt_rows(5000, 4999), 1);
}

TEST(MacState, DroppedTokensAreNeverReused) {
  Toy toy({1, 4, 2, 32, KvType::kBF16}, 400);
  const auto policy = make_policy(toy, kMac + ",tau=0.9");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 300, Phase::kPrefill);
  decode(toy, *policy, kv, 40);
  const std::vector<float> kept(toy.q(0, 303), toy.q(0, 304)),
      dropped(toy.q(0, 330), toy.q(0, 331));
  policy->truncate(305);
  kv.truncate(305);
  testing::change_tokens(toy, 305, 340);  // another text
  const auto hits = [&](const std::vector<float>& query) {
    std::copy(query.begin(), query.end(), toy.q(0, static_cast<size_t>(kv.length())));
    policy->clear_stats();
    decode(toy, *policy, kv, 1);
    return stat(*policy, "mac_head_hits");
  };
  EXPECT_EQ(hits(kept), 1.0);
  EXPECT_EQ(hits(dropped), 0.0);
}

TEST(MacState, NothingIsComparedAcrossSequences) {
  Toy toy({1, 4, 2, 32, KvType::kBF16}, 400);
  const auto policy = make_policy(toy, kMac + ",tau=0.9");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 300, Phase::kPrefill);
  policy->truncate(0);  // the session begins anew, with KV from elsewhere
  SequenceKv again = toy.new_sequence();
  const auto full = make_policy(toy, "full");
  toy.step(again, *full, 350, Phase::kPrefill);
  repeat_queries(toy, 350, 352, 60);
  decode(toy, *policy, again, 2);
  EXPECT_EQ(stat(*policy, "mac_head_hits"), 0.0);
}

TEST(MacState, ABypassedStepCostsOnlyItsOwnEntry) {
  Toy toy({1, 4, 2, 32, KvType::kBF16}, 400);
  repeat_queries(toy, 300, 400, 3);
  const auto policy = make_policy(toy, kMac + ",tau=0.9"), full = make_policy(toy, "full");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 300, Phase::kPrefill);
  decode(toy, *policy, kv, 10);
  toy.step(kv, *full, 1, Phase::kDecode);  // another policy's step, as `auto` does
  policy->clear_stats();
  decode(toy, *policy, kv, 2);
  EXPECT_EQ(stat(*policy, "mac_group_hits"), 1.0);
}

// 2,000 results built on one another. Where nothing is rotated and queries are equal every one of
// them is exact, so that what is off is the chain's own error.
TEST(MacState, LongChainsStaySane) {
  constexpr size_t kPrompt = 300, kSteps = 2000;
  ToyShape shape{1, 2, 1, 16, KvType::kF32};
  shape.rope_dims = 2;
  Toy toy(shape, kPrompt + kSteps);
  for (size_t token = 0; token < kPrompt + kSteps; ++token) {
    std::fill_n(toy.k(0, token), 2, 0.0f);
    // The mean of the values moves from 1 to -1 by keys that weigh little each.
    for (size_t d = 0; d < 16; ++d) toy.v(0, token)[d] += token < kPrompt ? 1.0f : -1.0f;
  }
  repeat_queries(toy, kPrompt, kPrompt + kSteps, 1);
  const auto mac = make_policy(toy, kMac + ",chain=free"), full = make_policy(toy, "full");
  SequenceKv kv = toy.new_sequence(), full_kv = toy.new_sequence();
  toy.step(kv, *mac, kPrompt, Phase::kPrefill);
  toy.step(full_kv, *full, kPrompt, Phase::kPrefill);
  double first = 0.0, last = 0.0;
  for (size_t i = 0; i < kSteps; ++i) {
    const auto got = toy.step(kv, *mac, 1, Phase::kDecode);
    const auto want = toy.step(full_kv, *full, 1, Phase::kDecode);
    for (size_t d = 0; d < got.size(); ++d) ASSERT_NEAR(got[d], want[d], 5e-5) << i;
    (i == 0 ? first : last) = want[0];
  }
  EXPECT_GT(std::abs(first - last), 0.3) << "the state has to follow";
  EXPECT_EQ(stat(*mac, "mac_group_hits"), 1.0);
  EXPECT_GT(stat(*mac, "mac_depth"), 900.0);
  EXPECT_EQ(stat(*mac, "mac_nonfinite"), 0.0);
}

TEST(MacState, WhereReuseDoesNotPayAStepIsTheInnerPolicysBitForBit) {
  Toy toy({2, 4, 2, 32, KvType::kBF16}, 900);
  for (const std::string inner : {"full", "quest:budget=96"}) {
    const auto policy = make_policy(toy, kMac + ",tau=0.9,guard=true+" + inner),
               alone = make_policy(toy, inner);
    SequenceKv kv = toy.new_sequence(), alone_kv = toy.new_sequence();
    toy.step(kv, *policy, 800, Phase::kPrefill);
    toy.step(alone_kv, *alone, 800, Phase::kPrefill);
    EXPECT_TRUE(decode(toy, *policy, kv, 100) == decode(toy, *alone, alone_kv, 100)) << inner;
    EXPECT_EQ(stat(*policy, "mac_off"), 1.0);
  }
}

TEST(MacState, TheGuardStopsComparingWhereNothingHits) {
  constexpr size_t kPrompt = 2200;  // of which the keys save more than a layer costs
  Toy toy({1, 4, 2, 32, KvType::kBF16}, kPrompt + 600);
  const auto index_bytes = [&](const std::string& options) {
    const auto policy = make_policy(toy, kMac + ",tau=0.9" + options);
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, *policy, kPrompt, Phase::kPrefill);
    uint64_t bytes = 0;
    for (size_t i = 0; i < 600; ++i) {
      toy.step(kv, *policy, 1, Phase::kDecode);
      bytes += toy.executor().cost(0).index_bytes_read;
    }
    return std::pair(bytes, stat(*policy, "mac_off"));
  };
  const auto [guarded, off] = index_bytes(",guard=true");
  const auto [unguarded, never] = index_bytes("");
  EXPECT_LT(guarded, unguarded / 4);
  EXPECT_GT(off, 0.8);
  EXPECT_EQ(never, 0.0);
  // Where everything hits it stays on, from the prompt's last rows on.
  repeat_queries(toy, kPrompt - 20, kPrompt + 600, 1);
  EXPECT_EQ(index_bytes(",guard=true").second, 0.0);
  // It comes back where hits begin later.
  Toy late({1, 4, 2, 32, KvType::kBF16}, kPrompt + 900);
  repeat_queries(late, kPrompt + 100, kPrompt + 900, 1);
  const auto policy = make_policy(late, kMac + ",tau=0.9,guard=true");
  SequenceKv kv = late.new_sequence();
  late.step(kv, *policy, kPrompt, Phase::kPrefill);
  decode(late, *policy, kv, 100);
  EXPECT_EQ(stat(*policy, "mac_off"), 1.0);
  decode(late, *policy, kv, 300);
  policy->clear_stats();
  decode(late, *policy, kv, 400);
  EXPECT_LT(stat(*policy, "mac_off"), 0.3);
  EXPECT_GT(stat(*policy, "mac_group_hits"), 0.9);
}

// Hits that have ended do not keep it comparing for a window of 512.
TEST(MacState, TheGuardRestsAgainWhereHitsEnd) {
  constexpr size_t kPrompt = 2200;
  Toy toy({1, 4, 2, 32, KvType::kBF16}, kPrompt + 500);
  repeat_queries(toy, kPrompt + 20, kPrompt + 200, 1);
  const auto policy = make_policy(toy, kMac + ",window=512,tau=0.9,guard=true");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, kPrompt, Phase::kPrefill);
  decode(toy, *policy, kv, 200);
  EXPECT_LT(stat(*policy, "mac_off"), 1.0);
  decode(toy, *policy, kv, 140);
  policy->clear_stats();
  decode(toy, *policy, kv, 140);
  EXPECT_EQ(stat(*policy, "mac_off"), 1.0);
}

TEST(MacState, ABadNumberIsNotRemembered) {
  Toy toy({1, 4, 2, 32, KvType::kF32}, 400);
  repeat_queries(toy, 300, 400, 3);
  toy.q(0, 301)[5] = NAN;
  const auto policy = make_policy(toy, kMac + ",tau=0.9");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 300, Phase::kPrefill);
  const Outputs got = decode(toy, *policy, kv, 12);
  EXPECT_EQ(stat(*policy, "mac_nonfinite"), 1.0);
  for (size_t i = 2; i < 12; ++i) {
    for (const float value : got[i]) ASSERT_TRUE(std::isfinite(value)) << i;
  }
}

}  // namespace
}  // namespace reprise

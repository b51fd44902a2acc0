// When MAC-Attention compares: heads and layers in which that does not pay.
#include <gtest/gtest.h>

#include "methods/mac/guard.h"
#include "methods/mac/parts.h"
#include "methods/mac_testing.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::decode;
using testing::figure;
using testing::make_policy;
using testing::Outputs;
using testing::repeat_query;
using testing::Toy;

constexpr size_t kPrompt = 2400, kSteps = 160;
const std::string kGuarded = testing::kEarlyMac + ",tau=0.9,layers=true,guard=true";
const std::string kUnguarded = testing::kEarlyMac + ",tau=0.9,layers=true";

/// A layer of two KV heads; queries of the first repeat, those of the second never match.
struct OneHeadHits : Toy {
  explicit OneHeadHits(size_t prompt = kPrompt)
      : Toy({1, 4, 2, 32, KvType::kBF16}, prompt + kSteps) {
    for (size_t token = prompt - 70; token < prompt + kSteps; ++token) {
      repeat_query(*this, token, token - 5, 0, 2);
    }
  }
};

Outputs answer(Toy& toy, Policy& policy, size_t prompt = kPrompt) {
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, prompt, Phase::kPrefill);
  return decode(toy, policy, kv, kSteps);
}

TEST(MacGuard, AHeadThatNeverHitsRestsBesideOneThatDoes) {
  OneHeadHits toy;
  const auto guarded = make_policy(toy, kGuarded), unguarded = make_policy(toy, kUnguarded);
  // A head that rests reads what it would read without a match.
  EXPECT_TRUE(answer(toy, *guarded) == answer(toy, *unguarded));
  EXPECT_EQ(figure(*guarded, "mac_off_layer0_head0"), 0.0);
  EXPECT_EQ(figure(*guarded, "mac_off_layer0_head1"), 1.0 - 5.0 / kSteps);  // every 32nd it tries
  EXPECT_EQ(figure(*unguarded, "mac_off_layer0_head1"), 0.0);
  EXPECT_EQ(figure(*guarded, "mac_head_hits_layer0_head0"), 1.0);
  EXPECT_EQ(figure(*guarded, "mac_head_hits_layer0_head3"), 0.0);
  EXPECT_GT(figure(*guarded, "mac_skipped_layer0_head0"), 0.9);
  EXPECT_EQ(figure(*guarded, "mac_skipped_layer0_head1"), 0.0);
  EXPECT_NEAR(figure(*guarded, "mac_off"), (1.0 - 5.0 / kSteps) / 2, 1e-9);
}

TEST(MacGuard, AHeadThatComesToHitIsSwitchedOn) {
  OneHeadHits toy;
  for (size_t token = kPrompt; token < kPrompt + kSteps; ++token) {
    repeat_query(toy, token, token - 7, 2, 2);
  }
  const auto policy = make_policy(toy, kGuarded);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, kPrompt, Phase::kPrefill);
  decode(toy, *policy, kv, 31);
  EXPECT_EQ(figure(*policy, "mac_off_layer0_head1"), 1.0);
  decode(toy, *policy, kv, 100);
  policy->clear_stats();
  decode(toy, *policy, kv, 20);
  EXPECT_EQ(figure(*policy, "mac_off_layer0_head1"), 0.0);
  EXPECT_EQ(figure(*policy, "mac_head_hits_layer0_head2"), 1.0);
}

// Results are stored and merged for all heads of a layer: few keys do not pay for that.
TEST(MacGuard, ALayerRestsBitForBitWhereItsHeadsGainTooLittle) {
  OneHeadHits toy(800);
  const auto policy = make_policy(toy, kGuarded), full = make_policy(toy, "full");
  EXPECT_TRUE(answer(toy, *policy, 800) == answer(toy, *full, 800));
  EXPECT_EQ(figure(*policy, "mac_off"), 1.0);
  EXPECT_EQ(figure(*policy, "mac_skipped"), 0.0);
}

// Not even an entry is left where no hits could pay.
TEST(MacGuard, ShortContextsCostNothing) {
  Toy toy({1, 4, 2, 32, KvType::kBF16}, 300 + kSteps);
  testing::repeat_queries(toy, 230, 300 + kSteps, 5);
  const auto policy = make_policy(toy, kGuarded), full = make_policy(toy, "full");
  EXPECT_TRUE(answer(toy, *policy, 300) == answer(toy, *full, 300));
  EXPECT_EQ(policy->state_bytes(), 0u);
  const auto unguarded = make_policy(toy, kUnguarded);
  answer(toy, *unguarded, 300);
  EXPECT_GT(figure(*unguarded, "mac_skipped"), 0.5);
}

// First keys and a band are read by who reuses, too: more than this inner policy reads.
TEST(MacGuard, RestsWhereTheInnerPolicyReadsLessThanReuseDoes) {
  OneHeadHits toy;
  const std::string inner = "quest:budget=32";
  const auto policy = make_policy(toy, kGuarded + "+" + inner), alone = make_policy(toy, inner);
  const Outputs got = answer(toy, *policy), want = answer(toy, *alone);
  EXPECT_TRUE(std::equal(got.begin() + 1, got.end(), want.begin() + 1));  // the first is seen
  EXPECT_GT(figure(*policy, "mac_off"), 0.99);
}

TEST(MacGuard, GoesOnAfterARestore) {
  OneHeadHits toy;
  const auto policy = make_policy(toy, kGuarded), restored = make_policy(toy, kGuarded);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, kPrompt, Phase::kPrefill);
  decode(toy, *policy, kv, 40);
  SequenceKv again = kv;
  ASSERT_TRUE(restored->restore_state(policy->save_state(), kv.length()));
  policy->clear_stats();
  EXPECT_TRUE(decode(toy, *restored, again, 64) == decode(toy, *policy, kv, 64));
  for (const std::string name : {"mac_off_layer0_head0", "mac_off_layer0_head1", "mac_skipped"}) {
    EXPECT_EQ(figure(*restored, name), figure(*policy, name)) << name;
  }
  EXPECT_EQ(figure(*restored, "mac_off_layer0_head1"), 1.0 - 2.0 / 64);
}

/// Whose last prompt row alone is like no other one.
struct OddLastRow : OneHeadHits {
  OddLastRow() {
    prompt_end = static_cast<int32_t>(kPrompt);
    repeat_query(*this, kPrompt - 1, 100, 0, 2);
  }
};

// Whatever rows of the prompt came in the last pass.
TEST(MacGuard, HowPromptsAreCutDoesNotMatter) {
  OddLastRow toy;
  Outputs want;
  for (const size_t last : {kPrompt, size_t{1}, size_t{5}}) {
    const auto policy = make_policy(toy, kGuarded);
    SequenceKv kv = toy.new_sequence();
    const size_t chunks[] = {kPrompt - last, last};
    const auto some = std::span(chunks).subspan(last == kPrompt ? 1 : 0);
    const Outputs got = testing::run(toy, *policy, kv, some, 40);
    EXPECT_EQ(figure(*policy, "mac_off_layer0_head0"), 0.0) << last;
    if (want.empty()) want = got;
    EXPECT_TRUE(got == want) << last;
  }
}

// Neither that a head came to pay in them, nor that it rested at their end.
TEST(MacGuard, ForgetsWhatItSawOfTokensThatAreGone) {
  for (const bool rests : {false, true}) {
    OneHeadHits toy;
    toy.prompt_end = static_cast<int32_t>(kPrompt);
    for (size_t token = kPrompt; token < kPrompt + kSteps; ++token) {
      if (rests)
        repeat_query(toy, token, token - 1000, 0, 2);
      else
        repeat_query(toy, token, token - 7, 2, 2);
    }
    const auto used = make_policy(toy, kGuarded), fresh = make_policy(toy, kGuarded);
    SequenceKv kv = toy.new_sequence();
    const size_t prompt[] = {kPrompt - 100, 100}, rest[] = {100};
    const Outputs want = testing::run(toy, *used, kv, prompt, kSteps);
    used->truncate(kPrompt - 100);
    kv.truncate(kPrompt - 100);
    SequenceKv again = kv;
    used->clear_stats();
    EXPECT_TRUE(testing::run(toy, *used, kv, rest, kSteps) == want);
    EXPECT_TRUE(testing::run(toy, *fresh, again, rest, kSteps) == want);
    EXPECT_EQ(figure(*used, "mac_off"), figure(*fresh, "mac_off"));
    EXPECT_EQ(used->save_state(), fresh->save_state());
  }
}

TEST(MacGuard, PaysWhereMoreIsSavedThanSpent) {
  MacGuard guard;
  EXPECT_TRUE(guard.pays());
  guard.saw(200.0, 100.0, true);  // what the prompt's last rows would have saved
  int compared = 0;
  for (int i = 0; i < 1000; ++i) {
    if (!guard.pays() && !guard.tries()) continue;
    guard.saw(0.0, 100.0, !guard.pays());
    ++compared;
  }
  EXPECT_FALSE(guard.pays());
  EXPECT_LT(compared, 45);  // 7 until it rests, then every 32nd
  EXPECT_GT(compared, 30);
  for (int i = 0; i < 320 && !guard.pays(); ++i) {
    if (guard.tries()) guard.saw(5000.0, 100.0, true);
  }
  EXPECT_TRUE(guard.pays());
  MacGuard hopeless;
  hopeless.saw(10.0, 100.0, true);
  EXPECT_FALSE(hopeless.pays());
}

TEST(MacGuard, HeadsPayTogetherForTheirLayer) {
  MacLayerGuard guard(2, 100);  // which costs 102,400
  EXPECT_TRUE(guard.pays());    // nothing is known
  guard.head(0).saw(80'000, 10'000, false);
  guard.head(1).saw(10'500, 10'000, false);  // within the margin
  EXPECT_TRUE(guard.head(0).pays());
  EXPECT_FALSE(guard.head(1).pays());
  EXPECT_FALSE(guard.pays());
  for (int i = 0; i < 100; ++i) guard.head(1).saw(60'000, 10'000, true);
  EXPECT_TRUE(guard.pays());
  for (int i = 0; i < 1000; ++i) guard.head(1).saw(-5'000, 10'000, false);
  EXPECT_FALSE(guard.pays());
  EXPECT_EQ(guard.head(1).gain(), 0.0);
}

TEST(MacGuard, KeysOfASelectionAreCounted) {
  constexpr size_t kGroup = 2;
  constexpr int32_t kPosition = 99;
  EXPECT_EQ(keys_read({}, 0, kGroup, kPosition), 100);
  Selection some;
  some.all = false;
  SelectionPart& shared = some.parts.emplace_back();
  const KeyRange ends[] = {{0, 8}, {90, 200}};
  shared.add_list(ends);
  EXPECT_EQ(keys_read(some, 1, kGroup, kPosition), 18);
  shared.head_begin = {4, 2, 99, 100};
  EXPECT_EQ(keys_read(some, 0, kGroup, kPosition), 16);
  EXPECT_EQ(keys_read(some, 1, kGroup, kPosition), 1);
  SelectionPart& own = some.parts.emplace_back();
  own.split = HeadSplit::kPerQueryHead;
  own.window = 50;
  for (int32_t head = 0; head < 4; ++head) {
    const KeyRange range[] = {{40, 51 + head}};
    own.add_list(range);
  }
  EXPECT_EQ(keys_read(some, 0, kGroup, kPosition), 16 + 1 + 2);
  EXPECT_EQ(keys_read(some, 1, kGroup, kPosition), 1 + 3 + 4);
}

}  // namespace
}  // namespace reprise

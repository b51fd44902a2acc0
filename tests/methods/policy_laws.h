// What holds for every policy that keeps state of its own, whatever its options.
#pragma once

#include <random>

#include "methods/selecting.h"

namespace reprise::testing {

/// A prompt of 400 tokens read in other chunks by other numbers of threads.
inline void expect_chunks_and_threads_change_no_bit(std::string_view spec) {
  const auto answer = [&](std::span<const size_t> chunks, int threads) {
    Toy toy({2, 6, 2, 32, kernels::KvType::kBF16}, 440, threads);
    toy.prompt_end = 400;
    SequenceKv kv = toy.new_sequence();
    return run(toy, *make_policy(toy, spec), kv, chunks, 40);
  };
  const size_t whole[] = {400}, chunks[] = {100, 1, 271, 28}, row_last[] = {250, 149, 1};
  const Outputs want = answer(whole, 2);
  EXPECT_TRUE(answer(chunks, 3) == want);
  EXPECT_TRUE(answer(row_last, 1) == want);
}

/// A sequence that was cut back and got other tokens goes on as if it had never had the first ones.
inline void expect_truncation_forgets_what_is_behind(std::string_view spec) {
  Toy toy({2, 4, 2, 32}, 500);
  toy.prompt_end = 400;
  const auto used = make_policy(toy, spec), fresh = make_policy(toy, spec);
  SequenceKv kv = toy.new_sequence();
  const size_t prompt[] = {400}, rest[] = {300};
  run(toy, *used, kv, prompt, 50);
  kv.truncate(100);
  used->truncate(100);
  SequenceKv fresh_kv = kv;
  change_tokens(toy, 100, 500);
  EXPECT_TRUE(run(toy, *used, kv, rest, 50) == run(toy, *fresh, fresh_kv, rest, 50));
}

/// What is saved after 407 tokens of which all behind `kept` are cut off goes on as the original.
inline void expect_saved_state_goes_on(std::string_view spec, int32_t kept) {
  Toy toy({2, 4, 2, 32, kernels::KvType::kBF16}, 500);
  toy.prompt_end = 400;
  const auto original = make_policy(toy, spec), restored = make_policy(toy, spec);
  SequenceKv kv = toy.new_sequence();
  const size_t prompt[] = {400};
  run(toy, *original, kv, prompt, 7);
  if (kept < kv.length()) {
    original->truncate(kept);
    kv.truncate(kept);
  }
  ASSERT_TRUE(restored->restore_state(original->save_state(), kept));
  SequenceKv again = kv;
  EXPECT_TRUE(run(toy, *original, kv, {}, 60) == run(toy, *restored, again, {}, 60));
  EXPECT_EQ(original->save_state(), restored->save_state());
}

/// Cut, longer and damaged states are refused, or accepted and harmless.
inline void expect_state_is_checked(std::string_view spec) {
  Toy toy({2, 4, 2, 32, kernels::KvType::kBF16}, 401);
  toy.prompt_end = 400;
  const auto policy = make_policy(toy, spec);
  SequenceKv kv = toy.new_sequence();
  const size_t prompt[] = {400};
  run(toy, *policy, kv, prompt, 0);
  const std::string state = policy->save_state();
  const auto other = make_policy(toy, spec);
  for (size_t length = 0; length < state.size(); length += 1 + length / 8) {
    EXPECT_FALSE(other->restore_state(state.substr(0, length), 400)) << length;
  }
  EXPECT_FALSE(other->restore_state(state + "x", 400));
  EXPECT_FALSE(other->restore_state(state, 300));  // of more keys than there are
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {  // whatever is accepted must not lead out of memory
    std::string damaged = state;
    for (int flips = 0; flips < 3; ++flips) {
      const size_t at = i % 2 == 0 ? random() % 64 : random() % state.size();
      damaged[at] = static_cast<char>(random());
    }
    if (other->restore_state(damaged, 400)) {
      SequenceKv fork = kv;
      toy.step(fork, *other, 1, kernels::Phase::kDecode);
    }
  }
}

}  // namespace reprise::testing

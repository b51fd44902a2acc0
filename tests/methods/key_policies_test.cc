// What holds for every policy that ranks or samples single keys after a dense prefill.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::decode;
using testing::Recorder;
using testing::Toy;
using testing::ToyShape;

constexpr int32_t kBudget = 48;

class KeyPolicy : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Policy> make(const Toy& toy) const {
    return testing::make_policy(toy, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(
    Specs, KeyPolicy,
    ::testing::Values("sparq:budget=48,local=8", "sparq:budget=48,local=48,mean=false",
                      "sparq:budget=48,local=1,channels=2,score=raw",
                      "pqcache:budget=48,sink=4,bits=4", "pqcache:budget=48,sink=0,local=0,parts=4",
                      "magicpig:tables=20,bits=3,sink=4,local=44",
                      "magicpig:tables=8,bits=0,sink=0,local=48,min-collisions=1"));

TEST_P(KeyPolicy, EqualsFullAttentionWhileEverythingFits) {
  for (const size_t length : {1, 15, 16, 17, 31, 32, 33, 47, 48}) {
    Toy toy({2, 6, 2, 32}, length);
    const auto policy = make(toy), full = testing::make_policy(toy, "full");
    SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
    if (length > 1) {
      ASSERT_EQ(toy.step(a, *policy, length - 1, Phase::kPrefill),
                toy.step(b, *full, length - 1, Phase::kPrefill));
    }
    ASSERT_EQ(toy.step(a, *policy, 1, Phase::kDecode), toy.step(b, *full, 1, Phase::kDecode))
        << length;
  }
}

TEST_P(KeyPolicy, PrefillIsFullAttention) {
  Toy toy({2, 6, 2, 32}, 200);
  const auto policy = make(toy), full = testing::make_policy(toy, "full");
  SequenceKv a = toy.new_sequence(), b = toy.new_sequence();
  EXPECT_EQ(toy.step(a, *policy, 200, Phase::kPrefill), toy.step(b, *full, 200, Phase::kPrefill));
  EXPECT_EQ(policy->prefill_key(), full->prefill_key());
}

TEST_P(KeyPolicy, OutputsMatchSoftmaxOverTheSelectionInDouble) {
  for (const ToyShape& shape :
       {ToyShape{1, 2, 2, 64}, ToyShape{1, 6, 2, 80}, ToyShape{1, 9, 1, 128}}) {
    Toy toy(shape, 220);
    Recorder policy(make(toy), toy.config());
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 200, Phase::kPrefill);
    for (int step = 0; step < 20; ++step) {
      const auto out = toy.step(kv, policy, 1, Phase::kDecode);
      const auto& seen = policy.seen[0];
      ASSERT_FALSE(seen.selection.all);
      for (size_t head = 0; head < shape.n_head; ++head) {
        const auto want = testing::selected_output(toy, kv, 0, seen, head);
        for (size_t d = 0; d < want.size(); ++d) {
          ASSERT_NEAR(out[head * shape.head_dim + d], want[d], testing::kFloatTolerance);
        }
      }
    }
  }
}

TEST_P(KeyPolicy, CountersEqualTheUnionOfWhatIsSelected) {
  const ToyShape shape = {2, 6, 2, 64, KvType::kBF16};
  Toy toy(shape, 301);
  Recorder policy(make(toy), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 300, Phase::kPrefill);
  toy.step(kv, policy, 1, Phase::kDecode);
  uint64_t keys = 0, pages = 0, index = 0;
  for (const auto& [layer, seen] : policy.seen) {
    index += seen.selection.index_bytes_read;
    const SelectionPart& part = seen.selection.parts.at(0);
    for (size_t kv_head = 0; kv_head < 2; ++kv_head) {
      std::set<int32_t> read, read_pages;
      for (size_t head = 3 * kv_head; head < 3 * kv_head + 3; ++head) {
        const auto list = testing::keys_of(part, testing::list_of(part, toy.config(), head));
        read.insert(list.begin(), list.end());
      }
      EXPECT_TRUE(read.contains(300));
      for (const int32_t key : read) read_pages.insert(key / 16);
      keys += read.size();
      pages += read_pages.size();
      if (part.split == HeadSplit::kPerKvHead) {
        EXPECT_EQ(read.size(), size_t{kBudget});
      }
    }
  }
  const auto& cost = toy.executor().cost(0);
  EXPECT_EQ(cost.keys_read, keys);
  EXPECT_EQ(cost.kv_bytes_read, pages * 2 * kv.pool().layout().tile_bytes());
  EXPECT_EQ(cost.index_bytes_read, index);
  EXPECT_GT(index, 0u);
}

TEST_P(KeyPolicy, ChunksAndThreadsDoNotChangeABit) {
  const auto run = [&](std::vector<size_t> chunks, int threads) {
    Toy toy({2, 6, 2, 32, KvType::kBF16}, 260, threads);
    toy.prompt_end = 240;
    const auto policy = make(toy);
    SequenceKv kv = toy.new_sequence();
    for (const size_t chunk : chunks) toy.step(kv, *policy, chunk, Phase::kPrefill);
    return decode(toy, *policy, kv, 20);
  };
  const auto want = run({240}, 1);
  EXPECT_EQ(run({240}, 2), want);
  EXPECT_EQ(run({240}, 3), want);
  EXPECT_EQ(run({1, 16, 100, 123}, 2), want);
}

TEST_P(KeyPolicy, ForksGoOnAsIfAlone) {
  Toy toy({2, 6, 2, 32}, 400);
  toy.prompt_end = 150;
  const auto policy = make(toy), other = make(toy);
  SequenceKv kv = toy.new_sequence(), other_kv = toy.new_sequence();
  toy.step(kv, *policy, 150, Phase::kPrefill);
  toy.step(other_kv, *other, 150, Phase::kPrefill);
  decode(toy, *policy, kv, 10);
  decode(toy, *other, other_kv, 10);
  const auto copy = policy->fork();
  SequenceKv copy_kv = kv;
  const auto want = decode(toy, *other, other_kv, 30);
  EXPECT_EQ(decode(toy, *policy, kv, 30), want);
  EXPECT_EQ(decode(toy, *copy, copy_kv, 30), want);
}

TEST_P(KeyPolicy, ANextPromptEqualsAFreshSequence) {
  for (const int32_t length : {230, 215, 130}) {  // after, inside the answer, inside the prompt
    Toy toy({2, 6, 2, 32}, 300);
    const auto policy = make(toy), fresh = make(toy);
    SequenceKv kv = toy.new_sequence(), fresh_kv = toy.new_sequence();
    toy.prompt_end = 200;
    toy.step(kv, *policy, 200, Phase::kPrefill);
    decode(toy, *policy, kv, 30);
    policy->truncate(length);
    kv.truncate(length);
    testing::change_tokens(toy, static_cast<size_t>(length), 270);
    toy.prompt_end = 250;
    toy.step(kv, *policy, static_cast<size_t>(250 - length), Phase::kPrefill);
    toy.step(fresh_kv, *fresh, 250, Phase::kPrefill);
    EXPECT_EQ(decode(toy, *policy, kv, 20), decode(toy, *fresh, fresh_kv, 20)) << length;
  }
}

TEST_P(KeyPolicy, LeavesWindowLayersAlone) {
  ToyShape shape = {2, 6, 2, 32};
  shape.window = 40;
  Toy toy(shape, 200);
  Recorder policy(make(toy), toy.config());
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 199, Phase::kPrefill);
  toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_FALSE(policy.seen.contains(0));
  EXPECT_TRUE(policy.seen.contains(1));
}

}  // namespace
}  // namespace reprise

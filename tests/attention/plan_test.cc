#include "attention/plan.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "attention/scripted.h"

namespace reprise {
namespace {

using testing::ScriptedPolicy;
using testing::Toy;
using testing::ToyShape;

// The pieces that the decode row of a sequence of so many keys is read in, per KV head.
std::vector<std::vector<KeyRead>> pieces_of(Toy& toy, uint32_t keys) {
  SequenceKv kv = toy.new_sequence();
  EXPECT_TRUE(kv.reserve(keys));
  ScriptedPolicy policy;
  const Row row = {0, static_cast<int32_t>(keys) - 1, 0};
  const SequenceStep step = {&kv, &policy, 0, 1, kernels::Phase::kDecode, 1};
  AttentionPlan plan(toy.config());
  plan.clear();
  EXPECT_TRUE(plan.add(0, 0, step, {&row, 1}, Selection{}));
  std::vector<std::vector<KeyRead>> pieces(toy.config().n_kv_head);
  const uint32_t group = toy.config().n_head / toy.config().n_kv_head;
  for (const AttentionJob& job : plan.jobs()) {
    EXPECT_EQ(job.reads, 1u);
    pieces[job.head / group].push_back(plan.reads(job).front());
  }
  return pieces;
}

TEST(AttentionPlan, PiecesShareAListEvenly) {
  ToyShape shape;
  shape.n_layer = 1;
  shape.head_dim = 2;
  Toy toy(shape, 1);
  for (const uint32_t keys : {1u, 128u, 512u, 513u, 1024u, 1025u, 2064u, 4000u, 8208u, 33000u}) {
    const auto heads = pieces_of(toy, keys);
    const uint32_t blocks = (keys + 15) / 16;
    for (const std::vector<KeyRead>& pieces : heads) {
      EXPECT_EQ(pieces.size(), heads.front().size()) << keys;
      EXPECT_TRUE(pieces.size() <= 2 || pieces.size() % 4 == 0) << keys << ": " << pieces.size();
      uint32_t next = pieces.front().first_block;
      for (const KeyRead& piece : pieces) {
        EXPECT_EQ(piece.first_block, std::exchange(next, piece.first_block + piece.blocks));
        EXPECT_NEAR(piece.blocks, static_cast<double>(blocks) / pieces.size(), 1) << keys;
      }
      EXPECT_EQ(next - pieces.front().first_block, blocks) << keys;
    }
  }
}

// Every block that the plan's jobs read, in their order.
std::vector<std::pair<uint32_t, uint16_t>> blocks_of(const AttentionPlan& plan) {
  std::vector<std::pair<uint32_t, uint16_t>> blocks;
  for (const AttentionJob& job : plan.jobs()) {
    for (const KeyRead& read : plan.reads(job)) {
      for (const KeyBlock& block : plan.blocks(read)) blocks.emplace_back(block.index, block.slots);
    }
  }
  return blocks;
}

TEST(AttentionPlan, ListsThatStayAreThoseOfANewPlan) {
  Toy toy(ToyShape(), 1);
  SequenceKv kv = toy.new_sequence();
  ASSERT_TRUE(kv.reserve(1500));
  ScriptedPolicy policy;
  Selection all, some;
  some.all = false;
  const KeyRange few = {16, 40};
  some.parts.emplace_back().add_list({&few, 1});
  AttentionPlan plan(toy.config());
  const auto add = [&](AttentionPlan& into, int32_t position, const Selection& selection) {
    const Row row = {0, position, 0};
    const SequenceStep step = {&kv, &policy, 0, 1, kernels::Phase::kDecode, 1};
    EXPECT_TRUE(into.add(0, 0, step, {&row, 1}, selection));
  };
  // The same again, a key and a block more, another list, two lists at once, and back.
  for (const int32_t position : {1000, 1000, 1001, 1008, -1, 1008, -2, 1008, 1008, 3, 3}) {
    AttentionPlan fresh(toy.config());
    plan.clear();
    for (AttentionPlan* each : {&plan, &fresh}) {
      if (position == -2) add(*each, 1008, all);
      add(*each, position < 0 ? 1008 : position, position == -1 ? some : all);
    }
    EXPECT_EQ(blocks_of(plan), blocks_of(fresh)) << position;
    EXPECT_EQ(plan.decode_keys(), fresh.decode_keys()) << position;
  }
}

}  // namespace
}  // namespace reprise

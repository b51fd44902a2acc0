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
    auto& of_head = pieces[job.head / group];
    of_head.insert(of_head.begin(), plan.reads(job).front());  // the last comes first
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
      uint32_t next = 0;
      for (const KeyRead& piece : pieces) {
        EXPECT_EQ(piece.first_block, std::exchange(next, piece.first_block + piece.blocks));
        EXPECT_NEAR(piece.blocks, static_cast<double>(blocks) / pieces.size(), 1) << keys;
      }
      EXPECT_EQ(next, blocks) << keys;
    }
  }
}

// All that a plan says, jobs in their order.
std::vector<std::vector<uint32_t>> contents(const AttentionPlan& plan) {
  std::vector<std::vector<uint32_t>> all;
  for (const AttentionJob& job : plan.jobs()) {
    all.push_back({job.step, job.row, job.rows, job.head, job.heads, job.partial});
    for (const KeyRead& read : plan.reads(job)) {
      for (const KeyBlock& block : plan.blocks(read)) all.push_back({block.index, block.slots});
    }
  }
  for (const PieceMerge& merge : plan.merges()) {
    all.push_back({merge.step, merge.row, merge.head, merge.heads, merge.partial, merge.pieces});
  }
  all.push_back({static_cast<uint32_t>(plan.partials()), static_cast<uint32_t>(plan.decode_keys()),
                 static_cast<uint32_t>(plan.decode_pages())});
  return all;
}

TEST(AttentionPlan, WhatStaysIsThatOfANewPlan) {
  Toy toy(ToyShape(), 1);
  SequenceKv kv = toy.new_sequence();
  ASSERT_TRUE(kv.reserve(1500));
  ScriptedPolicy policy;
  Selection all, some;
  some.all = false;
  const KeyRange few = {16, 40};
  some.parts.emplace_back().add_list({&few, 1});
  using Steps = std::vector<std::pair<int32_t, const Selection*>>;
  const Steps passes[] = {
      {{1000, &all}},
      {{1000, &all}},
      {{1001, &all}},
      {{1008, &all}},
      {{1008, &some}},
      {{1008, &some}},
      {{1008, &all}},
      {{1008, &all}, {1008, &all}},
      {{1008, &all}, {1008, &all}},
      {{1008, &all}, {1008, &some}},
      {{1008, &all}, {1008, &some}},
      {{1008, &all}, {700, &all}, {1008, &all}},
      {{1008, &all}, {701, &all}, {1008, &all}},
      {{1008, &all}, {701, &all}},
      {{1008, &all}, {701, &all}},
      {{3, &all}},
      {{3, &all}},
  };
  AttentionPlan plan(toy.config());
  std::vector<std::vector<uint32_t>> before;
  for (size_t pass = 0; pass < std::size(passes); ++pass) {
    AttentionPlan fresh(toy.config());
    for (AttentionPlan* each : {&plan, &fresh}) {
      each->clear();
      uint32_t index = 0;
      for (const auto& [position, selection] : passes[pass]) {
        const Row row = {0, position, 0};
        const SequenceStep step = {&kv, &policy, index, 1, kernels::Phase::kDecode, 1};
        EXPECT_TRUE(each->add(0, index++, step, {&row, 1}, *selection));
      }
    }
    const auto now = contents(plan);
    EXPECT_EQ(now, contents(fresh)) << pass;
    EXPECT_FALSE(fresh.kept()) << pass;
    EXPECT_TRUE(!plan.kept() || now == before) << pass;
    EXPECT_EQ(plan.kept(), pass == 1 || pass == 8 || pass == 16) << pass;
    before = now;
  }
}

}  // namespace
}  // namespace reprise

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

}  // namespace
}  // namespace reprise

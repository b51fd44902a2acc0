#include "kernels/cuda/kept_scans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "cuda/device_testing.h"
#include "kernels/cuda/key_spans.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kBatch = 3, kSlots = 64, kHeads = 5, kMostVotes = 20, kLayers = 2;
constexpr int32_t kRows = 4, kPromptEnd = 700;
constexpr MiddleKeys kMiddle = {8, 32, 100};
constexpr KeptShape kShape = {kLayers, kMostVotes, kHeads};

/// Key to votes and best score, as a table has them.
using Cast = std::map<uint32_t, std::pair<uint32_t, uint32_t>>;

struct Sequences {
  Sequences()
      : states(size_t{kBatch} * kShape.words()),
        pointers(std::vector<uint32_t*>{states.get(), states.get() + kShape.words(), nullptr}),
        prompt_ends(std::vector<int32_t>{kPromptEnd, kPromptEnd + 3, kPromptEnd}) {}

  KeptScansArgs args(uint32_t layer) const {
    return {pointers.get(), kShape, layer, kRows, prompt_ends.get(), scanning.get(), leaders.get()};
  }
  VoteTables tables() const {
    return {kSlots, keys.get(), votes.get(), best.get(), used.get(), count.get()};
  }

  /// Which of the sequences scan, and what those that do not vote for.
  std::vector<int32_t> begin(uint32_t layer, const std::vector<int32_t>& rows) {
    positions.set(rows);
    EXPECT_EQ(begin_scans(args(layer), positions.get(), kBatch, kMiddle, tables(), nullptr),
              cudaSuccess);
    return scanning.host();
  }
  Cast cast(uint32_t sequence) const {
    Cast all;
    const auto slots = used.host(), own_keys = keys.host(), own_votes = votes.host();
    const auto own_best = best.host();
    for (uint32_t c = 0; c < count.host()[sequence]; ++c) {
      const size_t at = sequence * kSlots + slots[sequence * kSlots + c];
      all[own_keys[at]] = {own_votes[at], own_best[at]};
    }
    return all;
  }
  /// As a scan would, at the slots that keys belong to.
  void vote(uint32_t sequence, const Cast& all) {
    auto own_keys = keys.host(), own_votes = votes.host(), own_best = best.host();
    auto own_used = used.host(), own_count = count.host();
    for (const auto& [key, cast] : all) {
      uint32_t slot = first_vote_slot(tables(), key);
      while (own_keys[sequence * kSlots + slot] != 0) slot = (slot + 1) % kSlots;
      own_keys[sequence * kSlots + slot] = key;
      own_votes[sequence * kSlots + slot] = cast.first;
      own_best[sequence * kSlots + slot] = cast.second;
      own_used[sequence * kSlots + own_count[sequence]++] = slot;
    }
    keys.set(own_keys);
    votes.set(own_votes);
    best.set(own_best);
    used.set(own_used);
    count.set(own_count);
  }
  /// Makes spans, which notes and empties the tables.
  void end(uint32_t layer) {
    const DeviceArray<int32_t> read(kBatch);
    KeySpansArgs spans;
    spans.votes = tables();
    spans.positions = positions.get();
    spans.batch = kBatch;
    spans.middle = kMiddle;
    spans.spans = 4;
    spans.span = 8;
    spans.kept = args(layer);
    spans.keys = read.get();
    EXPECT_EQ(key_spans(spans, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  DeviceArray<uint32_t> states;
  DeviceArray<uint32_t*> pointers;
  DeviceArray<int32_t> prompt_ends, scanning{kBatch}, positions{kBatch};
  DeviceArray<uint32_t> leaders{kBatch * kHeads};
  DeviceArray<uint32_t> keys{kBatch * kSlots}, votes{kBatch * kSlots}, best{kBatch * kSlots},
      used{kBatch * kSlots}, count{kBatch};
};

Cast random_votes(std::mt19937& random) {
  Cast all;
  for (uint32_t i = random() % kMostVotes; i > 0; --i) {
    all[9 + random() % 500] = {static_cast<uint32_t>(random() % 9),
                               static_cast<uint32_t>(random())};
  }
  return all;
}

TEST(KeptScans, LayersTakeTurnsAndVoteAsTheyLastDid) {
  REPRISE_NEEDS_DEVICE();
  std::mt19937 random(3);
  Sequences own;
  Cast last[kLayers][kBatch];
  std::vector<uint32_t> found[kLayers];
  size_t kept = 0;
  for (int32_t row = kPromptEnd - 2; row < kPromptEnd + 30; ++row) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE("row " + std::to_string(row) + ", layer " + std::to_string(layer));
      const std::vector<int32_t> rows = {row, row + 3, row};
      const auto scanning = own.begin(layer, rows);
      const int32_t since = row - kPromptEnd;  // of both
      const bool turn = since <= 0 || (since + static_cast<int32_t>(layer)) % kRows == 0;
      EXPECT_EQ(scanning, (std::vector<int32_t>{turn ? row : -1, turn ? row + 3 : -1, row}));
      for (uint32_t s = 0; s + 1 < kBatch && !turn; ++s) EXPECT_EQ(own.cast(s), last[layer][s]);
      kept += turn ? 0 : last[layer][0].size();
      if (turn) {
        std::vector<uint32_t> heads(kBatch * kHeads);
        for (uint32_t& head : heads) head = random();
        own.leaders.set(heads);
        found[layer] = heads;
        for (uint32_t s = 0; s + 1 < kBatch; ++s) {
          last[layer][s] = random_votes(random);
          own.vote(s, last[layer][s]);
        }
      } else {
        const auto heads = own.leaders.host();
        EXPECT_TRUE(std::equal(heads.begin(), heads.begin() + 2 * kHeads, found[layer].begin()));
      }
      own.end(layer);
      EXPECT_EQ(own.count.host(), std::vector<uint32_t>(kBatch));
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(kept, 50u);
}

TEST(KeptScans, OfRowsThatAreForgottenOrAnotherPromptServeNoMore) {
  REPRISE_NEEDS_DEVICE();
  Sequences own;
  const std::vector<int32_t> first = {kPromptEnd + 4, kPromptEnd + 7, kPromptEnd};
  const std::vector<int32_t> next = {kPromptEnd + 5, kPromptEnd + 8, kPromptEnd};
  own.begin(0, first);
  own.end(0);
  EXPECT_EQ(own.begin(0, next), (std::vector<int32_t>{-1, -1, kPromptEnd}));
  own.end(0);
  ASSERT_EQ(forget_scans(own.states.get(), kShape, first[0] + 1, nullptr), cudaSuccess);
  EXPECT_EQ(own.begin(0, next)[0], -1);
  own.end(0);
  ASSERT_EQ(forget_scans(own.states.get(), kShape, first[0], nullptr), cudaSuccess);
  EXPECT_EQ(own.begin(0, next), (std::vector<int32_t>{next[0], -1, kPromptEnd}));
  own.end(0);
  own.prompt_ends.set({kPromptEnd, kPromptEnd + 4, 0});
  EXPECT_EQ(own.begin(0, next), (std::vector<int32_t>{-1, next[1], kPromptEnd}));
  own.end(0);
  EXPECT_EQ(own.begin(0, {90, -1, 90}), (std::vector<int32_t>{90, -1, 90})) << "all is read";
}

}  // namespace
}  // namespace reprise::kernels::cuda

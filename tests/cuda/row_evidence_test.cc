#include "kernels/cuda/row_evidence.h"

#include <gtest/gtest.h>

#include "cuda/top_keys_case.h"
#include "methods/reattention/gate.h"
#include "methods/reattention/watch.h"

namespace reprise::kernels::cuda {
namespace {

constexpr EvidenceRules kRules = {3, static_cast<float>(Gate::kFade), Gate::kRows};
constexpr uint32_t kRank = 4, kPicks = 2;
constexpr float kLead = 14.0f;

/// Sequences on the device, and gates of the host that see the same rows.
struct Sequences {
  explicit Sequences(uint32_t count)
      : states(std::vector<RowEvidence>(count)), gates(count), counts(count) {
    std::vector<RowEvidence*> own;
    for (uint32_t i = 0; i < count; ++i) own.push_back(states.get() + i);
    pointers.emplace(own);
  }
  void begin(const std::vector<int32_t>& positions) const {
    const DeviceArray<int32_t> at(positions);
    ASSERT_EQ(begin_evidence(pointers->get(), at.get(), static_cast<uint32_t>(positions.size()),
                             kRules, nullptr),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void forget(uint32_t sequence, int32_t length) {
    ASSERT_EQ(forget_evidence(states.get() + sequence, length, kRules, nullptr), cudaSuccess);
    gates[sequence].truncate(length);
  }

  DeviceArray<RowEvidence> states;
  std::optional<DeviceArray<RowEvidence*>> pointers;
  std::vector<Gate> gates;
  std::vector<WatchOnDevice::Counts> counts;
};

/// A layer of rows at some positions: who votes, by what the host's gates say.
void expect_votes(Sequences& own, const std::vector<int32_t>& positions, uint32_t turn, float open,
                  uint32_t seed, const std::vector<uint8_t>& voting) {
  std::vector<int32_t> lengths;
  for (const int32_t position : positions) lengths.push_back(position + 1);
  ScanCase layer({}, lengths, 1);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> values(-3, 3);
  const auto value = [&](size_t, uint32_t) { return static_cast<float>(values(random)); };
  layer.fill(value, value);
  ScanCase::Call call(layer, {5, 20, 40}, 6, 1);
  const DeviceArray<uint8_t> votes(voting);
  call.args.votes_each = kPicks;
  call.args.lead = kLead;
  call.args.lead_rank = kRank;
  call.args.voting = votes.get();
  call.args.evidence = {own.pointers->get(), turn, open};
  ASSERT_EQ(top_keys(call.args, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (uint32_t s = 0; s < positions.size(); ++s) {
    if (middle_of(call.args.middle, positions[s], 1).end == 0) continue;
    const double evidence = own.gates[s].evidence(positions[s]) * Gate::kPast;
    ASSERT_GT(std::abs(evidence - open), 1e-4) << "choose another seed";
    std::map<int32_t, uint32_t> want;
    uint32_t leading = 0;
    const auto found = call.found_in(s);
    for (size_t head = 0; head < found.size(); ++head) {
      const auto& best = found[head];
      const bool leads = best.size() < kRank || best[0].first - best[kRank - 1].first >= kLead;
      if (voting[head] == 0) continue;
      leading += leads ? 1 : 0;
      for (size_t i = 0; (leads || evidence >= open) && i < std::min<size_t>(kPicks, best.size());
           ++i) {
        ++want[best[i].second];
      }
    }
    EXPECT_EQ(call.votes_in(s), want) << "sequence " << s << ", row " << positions[s];
    own.gates[s].add(positions[s], leading);
    ++own.counts[s].rows;
    if (evidence >= open) ++own.counts[s].open;
  }
}

TEST(RowEvidence, LetsThoseVoteThatTheHostLets) {
  REPRISE_NEEDS_DEVICE();
  constexpr float kOpen = 60.5f;
  Sequences own(4);
  const std::vector<uint8_t> voting = {1, 1, 0, 1, 1, 1, 1, 0, 1};
  // The second begins without a middle, the third makes jumps, the fourth is away at times.
  for (int32_t row = 0; row < 60; ++row) {
    const std::vector<int32_t> positions = {500 + row, 20 + row, 300 + row + row / 20 * 50,
                                            row % 3 == 0 ? -1 : 200 + row};
    own.begin(positions);
    for (uint32_t turn = 0; turn < kRules.turns && !testing::Test::HasFatalFailure(); ++turn) {
      const auto seed = static_cast<uint32_t>(row) * 8 + turn;
      expect_votes(own, positions, turn, kOpen, seed, voting);
    }
    if (row == 30) own.forget(0, 528);  // and the next row comes two later
    if (testing::Test::HasFatalFailure()) return;
  }
  const auto states = own.states.host();
  for (uint32_t s = 0; s < states.size(); ++s) {
    EXPECT_EQ(states[s].rows, own.counts[s].rows) << s;
    EXPECT_EQ(states[s].open, own.counts[s].open) << s;
    EXPECT_GT(states[s].open, states[s].rows / 8) << s;
    EXPECT_LT(states[s].open, states[s].rows) << s;
  }
}

// Heads of every row are set by hand.
TEST(RowEvidence, IsForgottenAsOnTheHost) {
  REPRISE_NEEDS_DEVICE();
  Sequences own(1);
  const auto set = [&](int32_t row) {
    own.begin({row});
    const auto heads = static_cast<uint32_t>(row * 7 % 13);
    uint32_t* sum = own.states.get()->sums + kRules.turns % 3;
    ASSERT_EQ(cudaMemcpy(sum, &heads, sizeof heads, cudaMemcpyHostToDevice), cudaSuccess);
    own.gates[0].add(row, heads);
  };
  const auto expect_past = [&](int32_t row) {
    own.begin({row});
    const double want = own.gates[0].evidence(row) * Gate::kPast;
    EXPECT_NEAR(own.states.host()[0].past, want, 1e-4 * (1 + want)) << row;
  };
  for (int32_t row = 100; row < 4500; ++row) set(row);
  expect_past(4500);
  for (const int32_t length : {4500, 4499, 4400, 4390, 4000, 700}) {
    own.forget(0, length);
    expect_past(length);
    own.forget(0, length);
    expect_past(length + 3);
    own.forget(0, length);
  }
  set(700);
  set(703);
  expect_past(710);
  expect_past(900);
  own.forget(0, 0);
  expect_past(0);
  expect_past(1);
}

}  // namespace
}  // namespace reprise::kernels::cuda

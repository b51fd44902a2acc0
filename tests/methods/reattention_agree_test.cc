#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "methods/reattention/agreement.h"
#include "methods/reattention_testing.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Outputs;
using testing::outputs_of;
using testing::Recorder;
using testing::Toy;
using Pages = std::vector<int32_t>;

TEST(Agreement, VotesOfTwoPagesFadeByATenthARow) {
  Agreement agreement;
  EXPECT_EQ(agreement.regions(5, 0.5), Pages{});
  agreement.add(100, 3 * 16 + 15);
  agreement.add(100, 4 * 16);
  agreement.add(100, 9 * 16);
  EXPECT_EQ(agreement.regions(100, 2.0), Pages{3});
  EXPECT_EQ(agreement.regions(100, 2.01), Pages{});
  EXPECT_EQ(agreement.regions(101, 1.79), Pages{3});
  EXPECT_EQ(agreement.regions(101, 1.81), Pages{});
  EXPECT_EQ(agreement.regions(100, 1.0), (Pages{3, 9})) << "4 shares a page with 3";
  EXPECT_EQ(agreement.regions(100 + Agreement::kRows - 1, 0.01), (Pages{3, 9}));
  EXPECT_EQ(agreement.regions(100 + Agreement::kRows, 0.01), Pages{});
}

TEST(Agreement, TheHeaviestRegionsAreRead) {
  Agreement agreement;
  for (int32_t page = 10; page < 80; page += 10) {
    for (int32_t votes = 0; votes < page / 20 + 1; ++votes) agreement.add(2000, page * 16);
  }
  EXPECT_EQ(agreement.regions(2000, 1.0), (Pages{70, 60, 50, 40})) << "later ones of equal weight";
  EXPECT_EQ(Agreement::middle_of(70), 71 * 16);
}

TEST(Agreement, WhatIsForgottenAsVotesComeCountsNoMore) {
  std::mt19937 random(5);
  Agreement agreement;
  for (int32_t row = 2000; row < 2060; ++row) {
    for (int layer = 0; layer < 4; ++layer) {
      for (int vote = 0; vote < 90; ++vote) {
        const auto page = static_cast<int32_t>(random() % 7 == 0 ? 40 : random() % 120);
        agreement.add_page(row, page);
      }
      Agreement fresh;  // is asked for the first time
      agreement.for_votes([&](int32_t at, int32_t page) { fresh.add_page(at, page); });
      for (const double votes : {2.0, 20.0, 60.0}) {
        ASSERT_EQ(agreement.regions(row, votes), fresh.regions(row, votes)) << row;
      }
    }
  }
}

TEST(Agreement, BeyondAMillionTokensFewerVotesAreEnough) {
  constexpr int32_t kMega = 1 << 20;
  EXPECT_EQ(Agreement::enough(0, 12.0), 12 * 1024);
  EXPECT_EQ(Agreement::enough(kMega - 1, 12.0), 12 * 1024);
  EXPECT_EQ(Agreement::enough(2 * kMega - 1, 12.0), 6 * 1024);
  EXPECT_EQ(Agreement::enough(3 * kMega - 1, 12.0), 4 * 1024);
  EXPECT_EQ(Agreement::enough(4 * kMega - 1, 12.0), 3 * 1024);
  EXPECT_EQ(Agreement::enough(16 * kMega - 1, 12.0), 3 * 1024) << "a quarter is the fewest";
  EXPECT_EQ(Agreement::enough(INT32_MAX - 1, 1e5), 25600000) << "nothing overflows";
  Agreement agreement;
  for (const int32_t row : {kMega - 1, 4 * kMega - 1}) {
    for (int32_t vote = 0; vote < 3; ++vote) agreement.add(row, 50 * 16);
  }
  EXPECT_EQ(agreement.regions(kMega - 1, 12.0), Pages{});
  EXPECT_EQ(agreement.regions(4 * kMega - 1, 12.0), Pages{50});
}

TEST(Agreement, ForgetsAndRestoresExactly) {
  Agreement agreement, shorter, restored, other;
  for (int32_t row = 100; row < 200; ++row) {
    for (int32_t vote = 0; vote < row % 3; ++vote) {
      agreement.add(row, row * 7 % 90);
      if (row < 150) shorter.add(row, row * 7 % 90);
    }
  }
  const std::string state = agreement.save();
  ASSERT_TRUE(restored.restore(state, 200, 2));
  EXPECT_EQ(restored.save(), state);
  for (Agreement* cut : {&agreement, &restored}) {
    EXPECT_EQ(cut->regions(150, 0.5), shorter.regions(150, 0.5)) << "rows after it do not count";
    EXPECT_NE(cut->regions(199, 0.5), shorter.regions(199, 0.5));
    cut->truncate(150);
    EXPECT_EQ(cut->regions(199, 0.5), shorter.regions(199, 0.5));
    EXPECT_EQ(cut->regions(150, 0.5), shorter.regions(150, 0.5));
    EXPECT_EQ(cut->save(), shorter.save());
  }
  for (size_t length = 0; length < state.size(); ++length) {
    ASSERT_FALSE(other.restore(state.substr(0, length), 200, 2)) << length;
  }
  EXPECT_FALSE(other.restore(state + "x", 200, 2));
  EXPECT_FALSE(other.restore(state, 199, 2)) << "the sequence is shorter";
  EXPECT_FALSE(other.restore(state, 200, 1)) << "the model has fewer heads";
  EXPECT_EQ(other.regions(200, 0.01), Pages{});
  Agreement backwards, ahead;
  for (const int32_t row : {40, 30}) backwards.add(row, 5);
  ahead.add(40, 48);
  EXPECT_FALSE(other.restore(backwards.save(), 200, 2));
  EXPECT_FALSE(other.restore(ahead.save(), 200, 2)) << "a row does not see what follows it";
}

/// Votes of a sequence, and what is read for them, by definition.
class Votes {
 public:
  void add(int32_t row, const std::vector<int32_t>& keys) {
    for (const int32_t key : keys) votes_.emplace_back(row, key / 16);
  }
  /// Pages of regions, the heaviest first; a single span= key of each is read.
  std::set<int32_t> middles(int32_t row, double least) const {
    std::map<int32_t, double> pages;
    for (const auto& [voted, page] : votes_) {
      if (row - voted < 32) pages[page] += std::round(1024 * std::pow(0.9, row - voted)) / 1024;
    }
    std::vector<std::pair<double, int32_t>> regions;
    for (const auto& [page, weight] : pages) {
      const auto next = pages.find(page + 1);
      regions.emplace_back(weight + (next != pages.end() ? next->second : 0.0), page);
    }
    std::sort(regions.rbegin(), regions.rend());
    std::vector<int32_t> taken;
    std::set<int32_t> keys;
    for (const auto& [weight, page] : regions) {
      const bool apart = std::none_of(taken.begin(), taken.end(), [at = page](int32_t other) {
        return std::abs(other - at) < 2;
      });
      if (weight < least || !apart || taken.size() == 4) continue;
      taken.push_back(page);
      const int32_t key = page * 16 + 16;
      if (key >= 5 && key < row - 39) keys.insert(key);
    }
    return keys;
  }

 private:
  std::vector<std::pair<int32_t, int32_t>> votes_;
};

TEST(ReAttentionAgree, ReadsWhatLeadingHeadsOfRowsAndLayersBeforeAgreeOn) {
  constexpr uint32_t kLayers = 3;
  const std::set<size_t> all = {0, 1, 2, 3, 4, 5};
  struct Case {
    bool some;  // layer 1 has no voting heads, and reads what the others agree on
    int32_t wide;
    std::string own = "always";
    int32_t interval = 1;  // a row whose layer does not scan takes its last scan's heads
  };
  for (const auto& [some, wide, reads_own, interval] : {Case{false, 40},
                                                        {true, 40},
                                                        {false, 90},
                                                        {false, 90, "apart"},
                                                        {false, 90, "never"},
                                                        {false, 90, "always", 4},
                                                        {true, 90, "apart", 3}}) {
    const std::vector<std::set<size_t>> vote = {all, some ? std::set<size_t>{} : all, all};
    const std::string heads = some ? ",heads=0:0/0:1/0:2/0:3/0:4/0:5/2:0/2:1/2:2/2:3/2:4/2:5" : "";
    Toy toy({kLayers, 6, 2, 64}, 330);
    toy.prompt_end = 300;
    Recorder policy(toy, std::string(testing::kLookFar) +
                             ",lead=0.9,agree=0.75,wide=" + std::to_string(wide) + heads +
                             ",own=" + reads_own + ",interval=" + std::to_string(interval));
    SequenceKv kv = toy.new_sequence();
    for (size_t token = 0; token < 280; token += 20) toy.step(kv, policy, 20, Phase::kPrefill);
    Votes votes;
    size_t agreed = 0, apart = 0;
    std::vector<testing::Expected> found(kLayers);
    for (int32_t row = 280; row < 330; ++row) {
      toy.step(kv, policy, 1, row < 300 ? Phase::kPrefill : Phase::kDecode);
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const int32_t since = row < 300 ? 300 - 48 : 300, every = row < 300 ? 4 : interval;
        const int32_t turn = row - since + static_cast<int32_t>(layer);
        const bool scans =
            row == 280 || row == 299 || row == 300 || turn % std::min(every, interval) == 0;
        testing::Expected& own = found[layer];
        if (scans) own = testing::expected(toy, layer, static_cast<size_t>(row), 0.9, vote[layer]);
        const auto middles = votes.middles(row, some ? 9.0 : 13.5);
        std::set<int32_t> want;
        if (reads_own == "always" || (reads_own == "apart" && middles.empty())) want = own.leading;
        want.insert(middles.begin(), middles.end());
        for (int32_t key = row + 1 - wide; key < row - 39 && middles.empty(); ++key) {
          want.insert(key);
        }
        ASSERT_EQ(testing::far_keys(policy.seen[layer], row), want) << row << " " << layer;
        votes.add(row, own.best);
        ++(middles.empty() ? apart : agreed);
      }
    }
    EXPECT_GT(agreed, 10u);
    EXPECT_GT(apart, 10u);
  }
}

TEST(ReAttentionAgree, WithoutAgreementTheLeadAlone) {
  const Outputs lead = outputs_of(",lead=0.9");
  EXPECT_TRUE(outputs_of(",lead=0.9,agree=10,wide=40,interval=1") == lead);
  EXPECT_FALSE(outputs_of(",lead=0.9,agree=10,wide=41,interval=1") == lead);
  EXPECT_FALSE(outputs_of(",lead=0.9,agree=0.25,wide=40,interval=1") == lead);
}

TEST(ReAttentionAgree, ForksCutSequencesAndRestoredOnesGoOnAsIfAlone) {
  Toy toy({2, 6, 2, 64, KvType::kBF16}, 360);
  toy.prompt_end = 300;
  const std::string spec = std::string(testing::kLookFar) + ",lead=0.9,agree=0.25,interval=1";
  const auto policy = testing::make_policy(toy, spec);
  SequenceKv kv = toy.new_sequence();
  for (size_t token = 0; token < 280; token += 20) toy.step(kv, *policy, 20, Phase::kPrefill);
  outputs_of(toy, *policy, kv, 30);
  const auto forked = policy->fork(), restored = testing::make_policy(toy, spec),
             blank = testing::make_policy(toy, spec);
  ASSERT_TRUE(restored->restore_state(policy->save_state(), 310));
  EXPECT_FALSE(blank->restore_state(policy->save_state(), 309));
  EXPECT_TRUE(blank->restore_state("", 310)) << "a session's from where nothing was agreed on";
  SequenceKv forked_kv = kv, restored_kv = kv, blank_kv = kv;
  const Outputs want = outputs_of(toy, *policy, kv, 40);
  EXPECT_TRUE(outputs_of(toy, *forked, forked_kv, 40) == want);
  EXPECT_TRUE(outputs_of(toy, *restored, restored_kv, 40) == want);
  EXPECT_FALSE(outputs_of(toy, *blank, blank_kv, 40) == want) << "votes would not matter";
  policy->truncate(305);
  kv.truncate(305);
  const Outputs again = outputs_of(toy, *policy, kv, 45);
  EXPECT_TRUE(std::equal(want.begin(), want.end(), again.begin() + 5));
}

TEST(ReAttentionAgree, ForksGoOnWithTheScansOfBefore) {
  Toy toy({2, 6, 2, 64, KvType::kBF16}, 360);
  toy.prompt_end = 300;
  const auto policy =
      testing::make_policy(toy, std::string(testing::kLookFar) + ",lead=0.9,agree=0.25,interval=8");
  SequenceKv kv = toy.new_sequence();
  for (size_t token = 0; token < 280; token += 20) toy.step(kv, *policy, 20, Phase::kPrefill);
  outputs_of(toy, *policy, kv, 33);
  const auto forked = policy->fork(), cut = policy->fork();
  SequenceKv forked_kv = kv, cut_kv = kv;
  const Outputs want = outputs_of(toy, *policy, kv, 40);
  EXPECT_TRUE(outputs_of(toy, *forked, forked_kv, 40) == want);
  cut->truncate(313);
  EXPECT_FALSE(outputs_of(toy, *cut, cut_kv, 40) == want) << "a cut sequence scans anew";
}

}  // namespace
}  // namespace reprise

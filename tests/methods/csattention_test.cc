#include "methods/csattention/csattention.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "methods/policy_laws.h"
#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Outputs;
using testing::Recorder;
using testing::Toy;
using testing::ToyShape;

/// Sum over the group of exact softmax weights over all keys [0, end).
std::vector<double> exact_scores(const Toy& toy, const SequenceKv& kv, const float* q,
                                 size_t kv_head, int32_t end) {
  const size_t group = toy.config().n_head / toy.config().n_kv_head;
  std::vector<int32_t> keys(static_cast<size_t>(end));
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<double> scores(keys.size());
  for (size_t r = 0; r < group; ++r) {
    const auto shares = testing::weights(toy, kv, 0, q + r * toy.config().head_dim, kv_head, keys);
    for (size_t i = 0; i < keys.size(); ++i) scores[i] += shares[i];
  }
  return scores;
}

/// Of pages 1 to recent / 16: sums over the group of exact softmax weights, where a page counts as
/// its best key does and keys of page 0 and from recent on as themselves.
std::vector<double> exact_page_scores(const Toy& toy, const SequenceKv& kv, const float* q,
                                      size_t kv_head, int32_t recent) {
  const size_t group = toy.config().n_head / toy.config().n_kv_head;
  std::vector<int32_t> keys(static_cast<size_t>(kv.length()));
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<double> scores(static_cast<size_t>(recent) / 16 - 1);
  for (size_t r = 0; r < group; ++r) {
    const auto shares = testing::weights(toy, kv, 0, q + r * toy.config().head_dim, kv_head, keys);
    std::vector<double> tops(scores.size());
    double total = 0.0;
    for (size_t i = 0; i < shares.size(); ++i) {
      const bool other = i < 16 || i >= static_cast<size_t>(recent);
      if (other) total += shares[i];
      if (!other) tops[i / 16 - 1] = std::max(tops[i / 16 - 1], shares[i]);
    }
    total = std::accumulate(tops.begin(), tops.end(), total);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] += tops[i] / total;
  }
  return scores;
}

TEST(CsAttention, ACodeForEveryKeyGivesTheExactBestKeys) {
  Toy toy({1, 6, 2, 64}, 240);
  toy.prompt_end = 230;
  for (size_t d = 0; d < 64; ++d) toy.k(0, 0)[d] *= 4;  // a sink that takes much from some heads
  Recorder policy(toy, "csattention:budget=96,sink=5,window=20,unit=key,bits=8,parts=8");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 230, Phase::kPrefill);
  for (int step = 0; step < 10; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    const auto& [selection, q] = policy.seen[0];
    const int32_t recent = (kv.length() - 20) / 16 * 16;
    const size_t picked = 96 - 5 - static_cast<size_t>(kv.length() - recent);
    for (size_t head = 0; head < 2; ++head) {
      const auto keys = testing::keys_of(selection.parts[0], head);
      ASSERT_EQ(keys.size(), 96u);
      for (int32_t i = 0; i < 5; ++i) ASSERT_EQ(keys[static_cast<size_t>(i)], i);
      for (size_t i = 5 + picked; i < 96; ++i) {
        ASSERT_EQ(keys[i], recent + static_cast<int32_t>(i - 5 - picked));
      }
      const auto scores = exact_scores(toy, kv, &q[head * 3 * 64], head, kv.length());
      std::vector<int32_t> picks(keys.begin() + 5, keys.begin() + 5 + static_cast<int>(picked));
      for (int32_t& pick : picks) pick -= 5;
      testing::expect_best(picks, std::span(scores).subspan(5, static_cast<size_t>(recent - 5)),
                           picked, 1e-5);
    }
  }
}

TEST(CsAttention, ACodeForEveryKeyGivesTheExactBestPages) {
  Toy toy({1, 6, 2, 64}, 260);
  toy.prompt_end = 250;
  Recorder policy(toy, "csattention:budget=128,window=20,bits=8,parts=8");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 250, Phase::kPrefill);
  for (int step = 0; step < 10; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    const auto& [selection, q] = policy.seen[0];
    const int32_t recent = (kv.length() - 20) / 16 * 16;
    const auto picked = static_cast<size_t>((128 - 16 - (kv.length() - recent)) / 16);
    for (size_t head = 0; head < 2; ++head) {
      const auto keys = testing::keys_of(selection.parts[0], head);
      ASSERT_EQ(keys.size(), 16 + 16 * picked + static_cast<size_t>(kv.length() - recent));
      const auto pages = exact_page_scores(toy, kv, &q[head * 3 * 64], head, recent);
      std::vector<int32_t> picks;
      for (size_t i = 16; i < 16 + 16 * picked; i += 16) {
        ASSERT_EQ(keys[i] % 16, 0);
        ASSERT_EQ(keys[i + 15], keys[i] + 15);
        picks.push_back(keys[i] / 16 - 1);
      }
      testing::expect_best(picks, pages, picked, 1e-5);
    }
  }
}

TEST(CsAttention, UpToActivateEverythingIsRead) {
  Toy toy({1, 6, 2, 64}, 220);
  toy.prompt_end = 190;
  Recorder policy(toy, "csattention:budget=96,activate=200");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 190, Phase::kPrefill);
  for (int step = 0; step < 20; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    EXPECT_EQ(policy.seen[0].selection.all, kv.length() <= 200);
  }
}

/// Share of what the best keys of the same number hold, that the keys between sinks and recent ones
/// found by a policy hold.
double recall(const char* spec) {
  Toy toy({1, 6, 2, 64}, 640);
  toy.prompt_end = 600;
  Recorder policy(toy, spec);
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 600, Phase::kPrefill);
  double found = 0.0, best = 0.0;
  for (int step = 0; step < 40; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    const auto& [selection, q] = policy.seen[0];
    for (size_t head = 0; head < 2; ++head) {
      auto scores = exact_scores(toy, kv, &q[head * 3 * 64], head, kv.length());
      const auto keys = testing::keys_of(selection.parts[0], head);
      size_t picked = 0;
      for (const int32_t key : keys) {
        if (key < 12 || key >= kv.length() - 48) continue;
        found += scores[static_cast<size_t>(key)];
        ++picked;
      }
      std::sort(scores.begin() + 12, scores.end() - 48, std::greater<>());
      best +=
          std::accumulate(scores.begin() + 12, scores.begin() + 12 + static_cast<int>(picked), 0.0);
    }
  }
  return found / best;
}

TEST(CsAttention, FinerIndexesFindMore) {
  const double bits2 = recall("csattention:budget=96,unit=key,bits=2,parts=8"),
               bits8 = recall("csattention:budget=96,unit=key,bits=8,parts=8");
  EXPECT_GT(bits8, bits2 + 0.05);
  EXPECT_GT(bits8, 0.85);
  // Two centroids span the two dims of a part, so that only the codes' steps are between the table
  // and exact logits.
  EXPECT_GT(recall("csattention:budget=96,unit=key,mode=table,parts=32"), 0.97);
  EXPECT_GT(recall("csattention:budget=96,unit=key,mode=table,parts=16"),
            recall("csattention:budget=96,unit=key,mode=table,parts=4") + 0.02);
}

class EveryMode : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Modes, EveryMode,
                         ::testing::Values("csattention:budget=96,window=20,unit=key",
                                           "csattention:budget=96,period=4",
                                           "csattention:budget=96,mode=table",
                                           "csattention:budget=64,mode=paper,centroids=16,index=2",
                                           "csattention:budget=96,mode=lists,sink=4,index=12",
                                           "csattention:budget=96,mode=lists,centroids=16,index=2,"
                                           "weights=norm,absent=mean,centred=true",
                                           "csattention:budget=64,mode=paper,observe=0,index=12"));

TEST_P(EveryMode, ChunksOfThePromptChangeNoBit) {
  testing::expect_chunks_and_threads_change_no_bit(GetParam());
}

TEST_P(EveryMode, TruncationForgetsEveryTokenBehindIt) {
  testing::expect_truncation_forgets_what_is_behind(GetParam());
}

TEST_P(EveryMode, SelectionsAreDisjointAndWithinTheBudget) {
  for (const ToyShape& shape :
       {ToyShape{1, 4, 4, 80, KvType::kF16}, ToyShape{1, 8, 1, 64, KvType::kQ8_0},
        ToyShape{1, 6, 2, 64, KvType::kBF12}, ToyShape{1, 4, 2, 32, KvType::kBF16, 0, 20.0f}}) {
    Toy toy(shape, 330);
    toy.prompt_end = 250;
    Recorder policy(toy, GetParam());
    SequenceKv kv = toy.new_sequence();
    toy.step(kv, policy, 250, Phase::kPrefill);
    for (int step = 0; step < 80; ++step) {
      toy.step(kv, policy, 1, Phase::kDecode);
      const SelectionPart& part = policy.seen[0].selection.parts.at(0);
      for (size_t list = 0; list + 1 < part.offsets.size(); ++list) {
        const auto keys = testing::keys_of(part, list);  // checks that they ascend
        EXPECT_LE(keys.size(), 96u);
        EXPECT_GE(keys.size(), 24u);
        EXPECT_EQ(keys.back(), kv.length() - 1);
      }
    }
  }
}

TEST_P(EveryMode, SavedStateGoesOnAsTheOriginal) {
  testing::expect_saved_state_goes_on(GetParam(), 400);  // without a search that a period may use
}

TEST_P(EveryMode, WhatIsNoStateIsRefused) { testing::expect_state_is_checked(GetParam()); }

TEST(CsAttention, AnIndexOutlivesTheEndOfALongPrompt) {
  Toy toy({2, 4, 2, 32, KvType::kBF16}, 1600);
  const char* spec = "csattention:budget=128";
  const auto kept = testing::make_policy(toy, spec), fresh = testing::make_policy(toy, spec);
  EXPECT_EQ(kept->observed_prompt_rows(1500, 0), 1500 - (1280 - 256));
  SequenceKv kv = toy.new_sequence();
  toy.prompt_end = 1500;
  toy.step(kv, *kept, 1500, Phase::kPrefill);  // fitted to 1280 tokens
  kv.truncate(1300);
  kept->truncate(1300);
  EXPECT_EQ(kept->observed_prompt_rows(1400, 1300), 0);
  EXPECT_EQ(kept->observed_prompt_rows(1400, 1200), 1400 - (1280 - 256));
  testing::change_tokens(toy, 1300, 1600);
  toy.prompt_end = 1400;
  toy.step(kv, *kept, 100, Phase::kPrefill);
  SequenceKv fresh_kv = toy.new_sequence();
  toy.step(fresh_kv, *fresh, 1400, Phase::kPrefill);  // fitted to the same tokens
  const std::string state = kept->save_state();
  EXPECT_EQ(state, fresh->save_state());
  kept->truncate(1279);
  EXPECT_LT(kept->save_state().size(), 100u);
}

TEST(CsAttention, ALongAnswerGetsIndexesOfItsOwn) {
  Toy toy({2, 2, 1, 32, KvType::kBF16}, 1400);
  toy.prompt_end = 200;
  Recorder policy(toy, "csattention:budget=64");
  const auto built_end = [&] {  // of the first layer
    const std::string state = policy.save_state();
    int32_t end = 0;
    std::memcpy(&end, state.data(), sizeof end);
    return end;
  };
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 200, Phase::kPrefill);
  for (int i = 0; i < 1024; ++i) toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_EQ(built_end(), 200);
  for (int i = 0; i < 16; ++i) toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_EQ(built_end(), 200 + 1024 + 1);
  const std::string first = policy.save_state();
  toy.step(kv, policy, 1, Phase::kDecode);  // the second layer follows
  EXPECT_NE(policy.save_state().substr(first.size() / 2, 2000),
            first.substr(first.size() / 2, 2000));
}

/// After 700 tokens whose queries lie along one dim, 400 of which are decoded, come 300 along
/// another that rotation leaves alone as well.
struct Turning {
  explicit Turning(const std::string& options)
      : toy({2, 2, 1, 32, KvType::kBF16}, 1000),
        policy(toy, "csattention:budget=96,unit=key,parts=4,bits=4," + options),
        kv(toy.new_sequence()) {
    toy.prompt_end = 300;
    for (size_t layer = 0; layer < 2; ++layer) {
      for (size_t token = 0; token < 1000; ++token) {
        for (size_t d = 0; d < 64; ++d) toy.q(layer, token)[d] *= 0.05f;
        for (const size_t head : {0u, 32u}) toy.q(layer, token)[head + (token < 700 ? 30 : 28)] = 9;
      }
    }
    toy.step(kv, policy, 300, Phase::kPrefill);
  }
  void decode(int rows) {
    for (int i = 0; i < rows; ++i) toy.step(kv, policy, 1, Phase::kDecode);
  }
  double stat(std::string_view name) const {
    for (const auto& [own, value] : policy.stats()) {
      if (own == name) return value;
    }
    return -1.0;
  }
  /// Share of the mass of as many best keys that those of the last row hold, but for the others.
  double found() const {
    const auto& [selection, q] = policy.seen.at(0);
    auto scores = exact_scores(toy, kv, q.data(), 0, kv.length());
    double own = 0.0;
    size_t picked = 0;
    for (const int32_t key : testing::keys_of(selection.parts[0], 0)) {
      if (key < 16 || key >= kv.length() - 48) continue;
      own += scores[static_cast<size_t>(key)];
      ++picked;
    }
    std::sort(scores.begin() + 16, scores.end() - 48, std::greater<>());
    return own / std::accumulate(scores.begin() + 16,
                                 scores.begin() + 16 + static_cast<int>(picked), 0.0);
  }
  Toy toy;
  Recorder policy;
  SequenceKv kv;
};

TEST(CsAttention, QueriesThatTurnGetCodesOfTheirOwn) {
  Turning kept("drift=1000"), renewed("drift=3");
  for (Turning* one : {&kept, &renewed}) {
    one->decode(400);
    EXPECT_LT(one->stat("drift_most"), 2.5);
    EXPECT_GT(one->stat("drift"), 0.7);
    EXPECT_EQ(one->stat("drift_rebuilds"), 0.0);
    one->decode(290);
    EXPECT_GT(one->stat("drift_most"), 5.0);
  }
  EXPECT_EQ(kept.stat("drift_rebuilds"), 0.0);
  EXPECT_GE(renewed.stat("drift_rebuilds"), 2.0);  // of both layers
  EXPECT_LE(renewed.stat("drift_rebuilds"), 4.0);
  EXPECT_GT(renewed.found(), kept.found() + 0.1);
}

TEST(CsAttention, WhereDriftIsMeasuredEveryKeyMayBeRead) {
  Turning turning("drift=3");
  const auto policy =
      testing::make_policy(turning.toy, "csattention:budget=96,parts=4,bits=4,drift=3");
  SequenceKv kv = turning.toy.new_sequence();
  turning.toy.step(kv, *policy, 300, Phase::kPrefill);
  ThreadPool pool(1);
  std::vector<int32_t> measured;
  for (int i = 0; i < 200; ++i) {
    const Row row = {0, kv.length(), 0};
    QueryRows rows;
    rows.rows = std::span(&row, 1);
    rows.kv = &kv;
    rows.pool = &pool;
    if (policy->reads_from(rows) == 0) measured.push_back(kv.length() + 1);
    turning.toy.step(kv, *policy, 1, Phase::kDecode);
  }
  EXPECT_EQ(measured, (std::vector<int32_t>{384}));
}

TEST(CsAttention, DriftIsNotMeasuredUnlessAskedFor) {
  Turning turning("drift=0");
  turning.decode(300);
  EXPECT_EQ(turning.stat("drift"), -1.0);
}

TEST(CsAttention, TheIndexStaysWithinItsShare) {
  Toy toy({1, 4, 2, 64, KvType::kBF16}, 1500);
  toy.prompt_end = 1500;
  for (const float share : {0.25f, 0.12f, 0.03f}) {
    for (const char* mode : {"codes,bits=8,parts=32", "codes", "table,parts=8,centroids=64"}) {
      const auto policy = testing::make_policy(
          toy, fmt::format("csattention:budget=128,index={},mode={}", share, mode));
      SequenceKv kv = toy.new_sequence();
      toy.step(kv, *policy, 1500, Phase::kPrefill);
      const double kv_bytes = 1500.0 * 2 * 64 * 4;
      const double codebooks =
          2.0 * 256 * (64 * 12 + 32 * 4) + 4096 + 2 * 32 * 16 * 4;  // whatever the length
      EXPECT_LE(static_cast<double>(policy->state_bytes()), share * kv_bytes + codebooks) << mode;
    }
  }
}

TEST(CsAttention, ListsLargerThanTheKvHaveToBeAskedFor) {
  Toy toy({1, 4, 2, 64, KvType::kBF16}, 600);
  const auto open = [&](const std::string& options) {
    return create_policy(policy_entries(), "csattention:budget=128," + options, toy.config());
  };
  for (const std::string mode : {"mode=paper", "mode=lists"}) {
    const auto refused = open(mode);  // 8 parts, 128 centroids, a quarter of the keys, 6 bytes
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr(mode + " take 6.00 times"));
    EXPECT_THAT(refused.error().message, ::testing::HasSubstr("index=6"));
    EXPECT_FALSE(open(mode + ",index=5.9"));
    EXPECT_TRUE(open(mode + ",index=6"));
    EXPECT_FALSE(open(mode + ",centroids=22"));
    EXPECT_TRUE(open(mode + ",centroids=21"));  // the default share is of codes and tables
  }
  toy.prompt_end = 600;
  const auto policy = testing::make_policy(toy, "csattention:budget=128,mode=paper,index=6");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 600, Phase::kPrefill);
  const double kv_bytes = 600.0 * 2 * 64 * 4, centroids = 2.0 * 128 * 64 * 4;
  EXPECT_NEAR(static_cast<double>(policy->state_bytes()), 6 * kv_bytes * 560 / 600 + centroids,
              4096);  // the window is not listed
}

TEST(CsAttention, KeepReadsAShareOfALongContext) {
  Toy toy({1, 4, 2, 32}, 801);
  toy.prompt_end = 800;
  const auto policy = testing::make_policy(toy, "csattention:budget=64,keep=0.25,unit=key");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 800, Phase::kPrefill);
  toy.step(kv, *policy, 1, Phase::kDecode);
  EXPECT_EQ(toy.executor().cost(0).keys_read, 2u * 201);  // ceil of 801 / 4
}

TEST(CsAttention, ASearchServesAPeriodUnlessTheQueryTurns) {
  Toy toy({1, 2, 1, 32}, 330);
  toy.prompt_end = 300;
  for (size_t token = 300; token < 330; ++token) {  // rotation turns the other pairs quickly
    std::fill_n(toy.q(0, token), 64, 0.0f);
    toy.q(0, token)[30] = toy.q(0, token)[62] = token < 320 ? 4.0f : -4.0f;
  }
  Recorder policy(toy, "csattention:budget=128,period=4");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 300, Phase::kPrefill);
  std::vector<int> searches;
  for (int step = 0; step < 24; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    if (policy.seen[0].selection.index_bytes_read > 0) searches.push_back(step);
  }
  EXPECT_EQ(searches, (std::vector<int>{0, 3, 7, 11, 15, 19, 20, 23}));
  kv.truncate(319);
  policy.truncate(319);
  searches.clear();
  for (int step = 19; step < 24; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    if (policy.seen[0].selection.index_bytes_read > 0) searches.push_back(step);
  }
  EXPECT_EQ(searches, (std::vector<int>{19, 20, 23}));  // the query turned round at 20
  kv.truncate(318);
  policy.truncate(318);
  toy.step(kv, policy, 4, Phase::kPrefill);  // past the row of the last search
  toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_GT(policy.seen[0].selection.index_bytes_read, 0u);
}

// tests/cuda/code_turns_test.cc has the same table.
TEST(CsAttention, LayersTakeTurnsToSearch) {
  Toy toy({6, 2, 1, 32}, 330);  // queries are noise
  toy.prompt_end = 300;
  Recorder policy(toy, "csattention:budget=128,period=4,cosine=-1");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 300, Phase::kPrefill);
  std::vector<std::vector<int>> searches(6);
  for (int step = 0; step < 12; ++step) {
    toy.step(kv, policy, 1, Phase::kDecode);
    for (size_t layer = 0; layer < 6; ++layer) {
      if (policy.seen[layer].selection.index_bytes_read > 0) searches[layer].push_back(step);
    }
  }
  EXPECT_EQ(searches[0], (std::vector<int>{0, 3, 7, 11}));
  EXPECT_EQ(searches[1], (std::vector<int>{0, 2, 6, 10}));
  EXPECT_EQ(searches[2], (std::vector<int>{0, 1, 5, 9}));
  EXPECT_EQ(searches[3], (std::vector<int>{0, 4, 8}));
  EXPECT_EQ(searches[5], searches[1]);
}

TEST(CsAttention, IndexBytesFollowTheFormula) {
  Toy toy({1, 4, 2, 64, KvType::kBF16}, 401);
  toy.prompt_end = 400;
  const auto policy =
      testing::make_policy(toy, "csattention:budget=128,sink=10,window=32,bits=4,unit=key,parts=8");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *policy, 400, Phase::kPrefill);
  toy.step(kv, *policy, 1, Phase::kDecode);
  const uint64_t codebooks = 2 * 16 * 64 * sizeof(float), recent = 368;
  // Exact logits read a page of sinks and those of keys 368 to 400.
  EXPECT_EQ(toy.executor().cost(0).index_bytes_read,
            (recent - 10) * 2 * 4 + codebooks + 2u * (1 + 3) * 16 * 64 * 2);
  const uint64_t metrics = 2 * 8 * 8 * 8 * sizeof(float);
  EXPECT_GE(policy->state_bytes(), 3 * codebooks + metrics + 2 * 4 * recent);
  EXPECT_LE(policy->state_bytes(), 3 * codebooks + metrics + 2 * 4 * 400 + 4096);
}

}  // namespace
}  // namespace reprise

// MAC-Attention as a policy.
#include <gtest/gtest.h>

#include <random>

#include "methods/mac/ring.h"
#include "methods/mac_toy.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::largest_difference;
using testing::make_policy;
using testing::Outputs;
using testing::repeat_query;
using testing::stats_of;
using testing::Toy;
using testing::ToyShape;
using testing::unrotated;
using testing::zero_rotated;

constexpr size_t kPrompt = 400, kTokens = 460;
const std::string& kMac = testing::kEarlyMac;

Outputs run(Toy& toy, Policy& policy, size_t prompt, size_t decoded, size_t chunk = 0) {
  SequenceKv kv = toy.new_sequence();
  Outputs outputs;
  toy.prompt_end = static_cast<int32_t>(prompt);
  for (size_t at = 0; at < prompt;) {
    const size_t rows = chunk > 0 ? std::min(chunk, prompt - at) : prompt;
    outputs.push_back(toy.step(kv, policy, rows, Phase::kPrefill));
    at += rows;
  }
  if (chunk > 0) outputs.clear();
  for (size_t i = 0; i < decoded; ++i) outputs.push_back(toy.step(kv, policy, 1, Phase::kDecode));
  return outputs;
}

Outputs run(Toy& toy, std::string_view spec, size_t prompt = kPrompt, size_t decoded = 60,
            size_t chunk = 0) {
  return run(toy, *make_policy(toy, spec), prompt, decoded, chunk);
}

TEST(Mac, WithoutReuseItIsTheInnerPolicyBitForBit) {
  Toy toy({2, 4, 2, 32, KvType::kBF16}, kTokens);
  for (const std::string inner : {"full", "quest:budget=96"}) {
    const auto policy = make_policy(toy, kMac + ",tau=1+" + inner);
    EXPECT_TRUE(run(toy, *policy, kPrompt, 60) == run(toy, inner)) << inner;
    EXPECT_TRUE(policy->rebuilds());
    const auto alone = make_policy(toy, inner);
    run(toy, *alone, kPrompt, 60);
    EXPECT_EQ(policy->state_bytes(), alone->state_bytes());
    // Too short a context.
    EXPECT_TRUE(run(toy, "mac:min_context=9999+" + inner) == run(toy, inner)) << inner;
  }
}

// What is computed anew is read in other pieces, because one of them is kept.
TEST(Mac, WithoutAHitItIsTheInnerPolicyUpToRounding) {
  Toy toy({2, 4, 2, 32, KvType::kF32}, kTokens);
  for (const std::string mode : {"", ",mode=paper", ",mixed=split,align=64"}) {
    const auto policy = make_policy(toy, kMac + ",tau=0.99" + mode);
    const Outputs want = run(toy, "full"), got = run(toy, *policy, kPrompt, 60);
    EXPECT_EQ(got.front(), want.front()) << "prompts are read alike";
    EXPECT_LE(largest_difference(got, want), testing::kFloatTolerance) << mode;
    EXPECT_EQ(stats_of(*policy).at("mac_head_hits"), 0.0);
    EXPECT_EQ(stats_of(*policy).at("mac_skipped"), 0.0);
    EXPECT_EQ(toy.executor().cost(0).keys_read, toy.executor().cost(0).keys_visible);
  }
}

TEST(Mac, EqualQueriesReuseExactlyWhereNothingIsRotated) {
  for (const std::string mode : {"", ",align=1,sink=0", ",band=0,align=64", ",mixed=split",
                                 ",chain=free,mode=paper", ",chain=anchored"}) {
    Toy toy(unrotated(2), kTokens);
    zero_rotated(toy, kTokens);
    // Every decoded token repeats a query of a prompt row, later ones those of decoded rows too.
    for (size_t token = kPrompt; token < kTokens; ++token) {
      repeat_query(toy, token, kPrompt - 10 + (token - kPrompt) % 7);
    }
    const auto policy = make_policy(toy, kMac + mode);
    const Outputs want = run(toy, "full", kPrompt, 50), got = run(toy, *policy, kPrompt, 50);
    EXPECT_LE(largest_difference(got, want), testing::kFloatTolerance) << mode;
    const auto stats = stats_of(*policy);
    EXPECT_EQ(stats.at("mac_group_hits"), 1.0) << mode;
    EXPECT_EQ(stats.at("mac_distance"), 0.0) << mode;
    EXPECT_GT(stats.at("mac_skipped"), 0.6) << mode;
    EXPECT_EQ(stats.at("mac_depth") > 1.0, mode.find("anchored") == std::string::npos) << mode;
    const StepCost& cost = toy.executor().cost(0);
    EXPECT_LT(cost.keys_read, cost.keys_visible / 2) << mode;
    EXPECT_LT(cost.kv_bytes_read, cost.full_kv_bytes / 2) << mode;
    EXPECT_GT(cost.index_bytes_read, 0u);
  }
}

TEST(Mac, WithRotationReuseOfEqualQueriesIsApproximate) {
  Toy toy({1, 4, 2, 32, KvType::kF32}, kTokens);
  for (size_t token = kPrompt; token < kTokens; ++token) repeat_query(toy, token, token - 20);
  const double error = largest_difference(run(toy, kMac), run(toy, "full"));
  EXPECT_GT(error, 10 * testing::kFloatTolerance);
}

TEST(Mac, TheBoundTracksTheErrorOfHits) {
  Toy toy(unrotated(), kTokens);
  zero_rotated(toy, kTokens);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (size_t token = kPrompt; token < kTokens; ++token) {
    repeat_query(toy, token, kPrompt - 10 + token % 7);
    const float noise = 0.01f * static_cast<float>(1 << token % 6);  // near and far hits
    for (size_t d = 0; d < toy.width(); ++d) toy.q(0, token)[d] += noise * normal(random);
  }
  const auto probed = [&](const std::string& options) {
    const auto policy = make_policy(toy, "probe+" + kMac + ",tau=0.4" + options);
    run(toy, *policy, kPrompt, 60);
    return stats_of(*policy);
  };
  const auto all = probed(",max_error=0");
  EXPECT_GT(all.at("mac_head_hits"), 0.95);
  EXPECT_GT(all.at("error_correlation"), 0.8);
  EXPECT_LT(all.at("error_ratio"), 1.0);
  const auto bounded = probed(",max_error=0.05");
  EXPECT_LT(bounded.at("mac_head_hits"), all.at("mac_head_hits"));
  EXPECT_GT(bounded.at("mac_head_hits"), 0.1);
  EXPECT_LT(bounded.at("output_error"), all.at("output_error") / 2);
}

TEST(Mac, AGroupIsReusedWholeOrPerHead) {
  Toy toy(unrotated(), kTokens);
  zero_rotated(toy, kTokens);
  // Of the KV head with query heads 2 and 3 only the first one repeats; of the other one, both do.
  for (size_t token = kPrompt; token < kTokens; ++token) repeat_query(toy, token, 395, 0, 3);
  const Outputs want = run(toy, "full");
  for (const bool split : {false, true}) {
    const auto policy = make_policy(toy, kMac + ",tau=0.9" + (split ? ",mixed=split" : ""));
    EXPECT_LE(largest_difference(run(toy, *policy, kPrompt, 60), want), testing::kFloatTolerance);
    const auto stats = stats_of(*policy);
    EXPECT_EQ(stats.at("mac_head_hits"), 0.75);
    EXPECT_EQ(stats.at("mac_group_hits"), 0.5);
    // A KV head's keys are read once, for the head that reads most.
    EXPECT_LT(toy.executor().cost(0).keys_read, toy.executor().cost(0).keys_visible * 3 / 4);
    EXPECT_GT(toy.executor().cost(0).keys_read, toy.executor().cost(0).keys_visible / 2);
  }
}

TEST(Mac, EntriesLeaveTheWindowAndTheGap) {
  const auto hits = [](size_t lag, const std::string& options) {
    Toy toy(unrotated(), kTokens);
    repeat_query(toy, kPrompt + 5, kPrompt + 5 - lag);
    const auto policy = make_policy(toy, kMac + ",tau=0.9" + options);
    run(toy, *policy, kPrompt, 6);
    return stats_of(*policy).at("mac_group_hits") > 0.0;
  };
  EXPECT_TRUE(hits(63, ""));
  EXPECT_FALSE(hits(64, ""));  // its slot is about to be overwritten
  EXPECT_TRUE(hits(20, ",max_gap=20"));
  EXPECT_FALSE(hits(21, ",max_gap=20"));
  EXPECT_TRUE(hits(1, ""));
}

TEST(Mac, ChainsEndAtTheirAge) {
  const auto depth = [](const std::string& chain) {
    Toy toy(unrotated(), kTokens);
    for (size_t token = kPrompt; token < kTokens; ++token) repeat_query(toy, token, kPrompt - 1);
    const auto policy = make_policy(toy, kMac + chain);
    run(toy, *policy, kPrompt, 60);
    return stats_of(*policy);
  };
  EXPECT_NEAR(depth(",chain=free").at("mac_depth"), 30.5, 1e-9);  // 1 to 60
  const auto aged = depth(",chain=age,max_age=10");
  EXPECT_LT(aged.at("mac_depth"), 10.0);
  EXPECT_NEAR(aged.at("mac_group_hits"), 10.0 / 11, 0.02);  // one in 11 is computed anew
  EXPECT_EQ(depth(",chain=anchored").at("mac_depth"), 1.0);
}

TEST(Mac, AReusedShareThatIsTooLargeIsComputedAnew) {
  Toy toy({1, 4, 2, 32, KvType::kF32}, kTokens);
  for (size_t token = kPrompt; token < kTokens; ++token) {
    repeat_query(toy, token, token - 20);
    for (size_t d = 0; d < toy.width(); ++d) toy.q(0, token)[d] *= 1.01f;
  }
  const Outputs want = run(toy, "full");
  double last_hits = 2.0, last_error = 1e9;
  for (const std::string limit : {"0", "0.02", "0.005"}) {
    const auto policy = make_policy(toy, kMac + ",max_error=" + limit);
    const double error = largest_difference(run(toy, *policy, kPrompt, 60), want);
    const double hits = stats_of(*policy).at("mac_head_hits");
    EXPECT_LT(hits, last_hits) << limit;
    EXPECT_LE(error, last_error) << limit;
    last_hits = hits;
    last_error = error;
  }
  EXPECT_EQ(last_hits, 0.0);
}

TEST(Mac, ChunksSeedTheRingAlike) {
  for (const std::string mode : {"", ",mode=paper", ",min_context=380"}) {
    Toy toy({2, 4, 2, 32, KvType::kBF16}, kTokens);
    for (size_t token = kPrompt; token < kTokens; ++token) repeat_query(toy, token, token - 20);
    const Outputs want = run(toy, kMac + mode, kPrompt, 60, kPrompt);
    for (const size_t chunk : {1, 37, 64, 200, 399}) {
      EXPECT_TRUE(run(toy, kMac + mode, kPrompt, 60, chunk) == want) << mode << " " << chunk;
    }
  }
}

TEST(Mac, OverASparsePolicyMissesReadWhatItSelects) {
  Toy toy({2, 4, 2, 32, KvType::kF32}, kTokens);
  const Outputs full = run(toy, "full");
  const auto roomy = make_policy(toy, kMac + ",tau=0.99+quest:budget=4096");
  EXPECT_LE(largest_difference(run(toy, *roomy, kPrompt, 60), full), testing::kFloatTolerance);
  run(toy, kMac + ",tau=0.99+quest:budget=64");
  // Its keys, and sinks and band.
  EXPECT_LT(toy.executor().cost(0).keys_read, toy.executor().cost(0).keys_visible / 3);
  // Half of the heads hit: those of the other group still read what is selected for them.
  Toy half(unrotated(), kTokens);
  zero_rotated(half, kTokens);
  for (size_t token = kPrompt; token < kTokens; ++token) repeat_query(half, token, 395, 0, 3);
  for (const std::string mixed : {"", ",mixed=split"}) {
    const auto got = run(half, kMac + ",tau=0.9" + mixed + "+quest:budget=4096");
    EXPECT_LE(largest_difference(got, run(half, "full")), testing::kFloatTolerance) << mixed;
  }
}

TEST(Mac, LayersWithAWindowKeepNothing) {
  Toy toy({3, 4, 2, 32, KvType::kBF16, 64}, kTokens);
  const auto policy = make_policy(toy, kMac);
  run(toy, *policy, kPrompt, 10);
  Toy all({2, 4, 2, 32, KvType::kBF16}, kTokens);
  const auto two = make_policy(all, kMac);
  run(all, *two, kPrompt, 10);
  EXPECT_EQ(policy->state_bytes(), two->state_bytes());
  // bf16 queries, float results, norm and state of every head, and a tag.
  const uint64_t slot = 4 * (32 * 2 + 32 * 4 + 4 + sizeof(MacState)) + 4;
  EXPECT_EQ(two->state_bytes(), 2 * 64 * slot);
  const auto narrow = make_policy(all, kMac + ",ring=q8_0");
  run(all, *narrow, kPrompt, 10);
  EXPECT_LT(narrow->state_bytes(), two->state_bytes() * 47 / 100);
}

// Logits of all prefix keys move alike where keys have a common direction.
TEST(Mac, TheCorrectionMovesWhatAResultWeighs) {
  for (const std::string ring : {"f32", "q8_0"}) {
    Toy toy(unrotated(), kTokens);
    zero_rotated(toy, kTokens);
    for (size_t token = 0; token < kPrompt - 60; ++token) {
      for (size_t d = 0; d < 64; ++d) {
        toy.k(0, token)[d] += d % 32 < 2 ? 0.0f : 0.5f;
        toy.v(0, token)[d] += 3.0f;
      }
    }
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (size_t token = kPrompt; token < kTokens; ++token) {
      repeat_query(toy, token, kPrompt - 10 + token % 7);
      for (size_t d = 0; d < toy.width(); ++d) toy.q(0, token)[d] += 0.2f * normal(random);
    }
    const Outputs want = run(toy, "full");
    double error[2] = {};
    for (const bool fixed : {false, true}) {
      const auto policy = make_policy(
          toy, kMac + ",tau=0.4,max_error=0,ring=" + ring + (fixed ? ",lse_fix=true" : ""));
      const Outputs got = run(toy, *policy, kPrompt, 60);
      for (size_t i = 1; i < got.size(); ++i) {
        for (size_t d = 0; d < got[i].size(); ++d) {
          error[fixed ? 1 : 0] += std::pow(double{got[i][d]} - want[i][d], 2);
        }
      }
      EXPECT_GT(stats_of(*policy).at("mac_head_hits"), 0.9);
    }
    EXPECT_LT(error[1], 0.5 * error[0]) << ring;
  }
}

TEST(Mac, ARingOf8BitsIsOffByItsRounding) {
  Toy toy(unrotated(), kTokens);
  zero_rotated(toy, kTokens);
  for (size_t token = kPrompt; token < kTokens; ++token) repeat_query(toy, token, kPrompt - 10);
  const Outputs want = run(toy, "full");
  for (const std::string chain : {"free", "anchored"}) {
    const auto policy = make_policy(toy, kMac + ",ring=q8_0,chain=" + chain);
    const double error = largest_difference(run(toy, *policy, kPrompt, 60), want);
    EXPECT_GT(error, testing::kFloatTolerance);
    EXPECT_LT(error, 0.01) << chain;  // values are of size 1: 1 / 254 of the largest in a block
    EXPECT_GT(stats_of(*policy).at("mac_group_hits"), 0.5) << chain;
  }
  ToyShape odd{1, 4, 2, 24};
  EXPECT_EQ(create_policy(policy_entries(), "mac:ring=q8_0", testing::toy_config(odd)).error().code,
            ErrorCode::kUnsupported);
}

TEST(Mac, PoliciesThatGiveUpOrMoveKeysAreRefused) {
  const auto config = testing::toy_config({});
  for (const std::string inner : {"streaming", "h2o", "snapkv", "infllm", "full:keys=position-free",
                                  "dense+streaming", "mac"}) {
    const auto policy = create_policy(policy_entries(), "mac+" + inner, config);
    ASSERT_FALSE(policy) << inner;
    EXPECT_EQ(policy.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(policy.error().message.find(inner), std::string::npos) << policy.error().message;
  }
  for (const std::string spec : {"mac", "mac+quest", "mac+magicpig", "mac+dense+quest", "auto+mac",
                                 "dense:first=1+mac", "probe+mac+quest", "mac+sparq:mean=false"}) {
    EXPECT_TRUE(create_policy(policy_entries(), spec, config)) << spec;
  }
}

}  // namespace
}  // namespace reprise

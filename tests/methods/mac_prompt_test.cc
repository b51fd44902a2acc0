// MAC-Attention of prompt rows: prefill=reuse.
#include <gtest/gtest.h>

#include "methods/mac_toy.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::largest_difference;
using testing::make_policy;
using testing::Outputs;
using testing::repeat_queries;
using testing::stats_of;
using testing::Toy;
using testing::unrotated;
using testing::zero_rotated;

constexpr size_t kTokens = 460, kFirstRepeat = 150, kLag = 90;
const std::string kBounded =
                      "mac:min_context=0,window=256,band=32,sink=8,guard=false,prefill=reuse",
                  kReuse = kBounded + ",max_error=0";

/// Goes on with a prompt in chunks that end where the policy cuts them; the outputs of each row.
Outputs read(Toy& toy, Policy& policy, SequenceKv& kv, size_t end, size_t chunk = kTokens) {
  Outputs rows;
  toy.prompt_end = static_cast<int32_t>(end);
  while (static_cast<size_t>(kv.length()) < end) {
    const auto left =
        static_cast<size_t>(std::min(policy.next_cut(kv.length()), toy.prompt_end) - kv.length());
    const size_t count = std::min(chunk, left), width = toy.width();
    const auto out = toy.step(kv, policy, count, Phase::kPrefill);
    for (size_t row = 0; row < count; ++row) {
      std::vector<float>& of_row = rows.emplace_back();
      for (size_t layer = 0; layer < toy.config().n_layer; ++layer) {
        const auto first = out.begin() + static_cast<std::ptrdiff_t>((layer * count + row) * width);
        of_row.insert(of_row.end(), first, first + static_cast<std::ptrdiff_t>(width));
      }
    }
  }
  return rows;
}

Outputs read(Toy& toy, std::string_view spec, size_t end = kTokens, size_t chunk = kTokens) {
  SequenceKv kv = toy.new_sequence();
  return read(toy, *make_policy(toy, spec), kv, end, chunk);
}

/// Whose rows from kFirstRepeat on have the queries of earlier ones.
struct Repeating : Toy {
  explicit Repeating(uint32_t layers = 1) : Toy(unrotated(layers), kTokens) {
    zero_rotated(*this, kTokens);
    repeat_queries(*this, kFirstRepeat, kTokens, kLag);
  }
};

TEST(MacPrompt, WithoutReuseItIsFullAttentionBitForBit) {
  Toy toy({2, 4, 2, 32, KvType::kBF16}, kTokens);
  const Outputs want = read(toy, "full");
  for (const std::string& spec : {kReuse + ",tau=1", std::string("mac:prefill=reuse")}) {
    const auto policy = make_policy(toy, spec);
    SequenceKv kv = toy.new_sequence();
    EXPECT_TRUE(read(toy, *policy, kv, kTokens) == want) << spec;
    EXPECT_EQ(policy->state_bytes(), 0u) << spec;
  }
  EXPECT_EQ(make_policy(toy, kReuse + ",tau=1")->prefill_key(), kDensePrefill);
  EXPECT_EQ(make_policy(toy, kReuse)->prefill_key(), "");  // its KV is not full attention's
}

// Rows are read in other pieces, because one of them is kept.
TEST(MacPrompt, WithoutAHitItIsFullAttentionUpToRounding) {
  Toy toy({2, 4, 2, 32, KvType::kF32}, kTokens);
  const Outputs want = read(toy, "full");
  for (const std::string mode : {"", ",mode=paper", ",mixed=split"}) {
    const auto policy = make_policy(toy, kReuse + ",tau=0.99" + mode);
    SequenceKv kv = toy.new_sequence();
    EXPECT_LE(largest_difference(read(toy, *policy, kv, kTokens), want), testing::kFloatTolerance);
    EXPECT_EQ(stats_of(*policy).at("mac_prompt_head_hits"), 0.0);
    EXPECT_EQ(stats_of(*policy).at("mac_prompt_skipped"), 0.0);
    EXPECT_GT(policy->state_bytes(), 0u);
  }
}

TEST(MacPrompt, EqualQueriesReuseExactlyWhereNothingIsRotated) {
  for (const std::string mode :
       {"", ",mode=paper", ",mixed=split", ",chain=anchored", ",band=17,sink=5"}) {
    Repeating toy(2);
    const Outputs want = read(toy, "full");
    const std::string spec =
        mode.starts_with(",band")
            ? "mac:min_context=0,window=256,guard=false,max_error=0,prefill=reuse" + mode
            : kReuse + mode;
    const auto policy = make_policy(toy, spec + ",tau=0.6");
    SequenceKv kv = toy.new_sequence();
    EXPECT_LE(largest_difference(read(toy, *policy, kv, kTokens), want), testing::kFloatTolerance)
        << mode;
    auto stats = stats_of(*policy);
    EXPECT_GT(stats.at("mac_prompt_group_hits"), 0.5) << mode;
    EXPECT_GT(stats.at("mac_prompt_skipped"), 0.2) << mode;
    EXPECT_EQ(stats.at("mac_prompt_depth") > 1.0, mode != ",chain=anchored") << mode;
    EXPECT_EQ(stats.at("mac_skipped"), 0.0) << "of decode rows";
    policy->clear_stats();
    EXPECT_EQ(stats_of(*policy).at("mac_prompt_skipped"), 0.0);
  }
}

TEST(MacPrompt, OneHeadThatMissesIsAMissOfItsGroup) {
  Toy toy(unrotated(), kTokens);
  zero_rotated(toy, kTokens);
  for (size_t token = kFirstRepeat; token < kTokens; ++token) {
    testing::repeat_query(toy, token, token - kLag, 0, 3);  // all but the last query head
  }
  const Outputs want = read(toy, "full");
  for (const std::string mixed : {"full", "split"}) {
    const auto policy = make_policy(toy, kReuse + ",tau=0.9,mixed=" + mixed);
    SequenceKv kv = toy.new_sequence();
    EXPECT_LE(largest_difference(read(toy, *policy, kv, kTokens), want), testing::kFloatTolerance);
    const double skipped = stats_of(*policy).at("mac_prompt_skipped");
    EXPECT_GT(skipped, 0.15) << mixed;
    EXPECT_LT(skipped, 0.35) << mixed;  // more where both KV heads hit
  }
}

TEST(MacPrompt, WithRotationReuseOfEqualQueriesIsApproximate) {
  Toy toy({1, 4, 2, 32, KvType::kF32}, kTokens);
  repeat_queries(toy, kFirstRepeat, kTokens, kLag);
  const Outputs want = read(toy, "full"), got = read(toy, kReuse);
  EXPECT_GT(largest_difference(got, want), 10 * testing::kFloatTolerance);
}

// Were they read and masked, values that are no numbers would show: 0 times NaN is NaN.
TEST(MacPrompt, KeysOfReusedResultsAreNotRead) {
  const auto small_after = [](const std::string& spec) {
    Repeating toy;
    const auto policy = make_policy(toy, spec);
    SequenceKv kv = toy.new_sequence();
    read(toy, *policy, kv, 384);
    const std::vector<float> huge(64, 1e30f);
    for (size_t token = 16; token < 240; ++token) {
      kernels::store_token(kv.pool().layout(), kv.page(0, token / kPageTokens), token % kPageTokens,
                           toy.k(0, token), huge.data());
    }
    const Outputs rows = read(toy, *policy, kv, 448);
    return std::all_of(rows.begin(), rows.end(), [](const auto& row) {
      return std::all_of(row.begin(), row.end(),
                         [](float value) { return std::fabs(value) < 1e6f; });
    });
  };
  EXPECT_FALSE(small_after("full"));
  EXPECT_FALSE(small_after(kReuse + ",tau=1"));
  EXPECT_TRUE(small_after(kReuse));
}

TEST(MacPrompt, NeitherChunksNorThreadsChangeABit) {
  const std::string narrow = "mac:min_context=0,window=40,band=32,sink=8,prefill=reuse";
  for (const std::string& spec : {kReuse, kReuse + ",mode=paper", kReuse + ",mixed=split",
                                  kReuse + ",ring=q8_0", kBounded, narrow}) {
    Outputs want;
    std::vector<float> decoded;
    double hits = 0.0;
    for (const size_t chunk : {kTokens, size_t{1}, size_t{37}, size_t{64}, size_t{200}}) {
      Toy toy({2, 6, 2, 32, KvType::kBF16}, kTokens + 1, chunk == 37 ? 5 : 2);
      repeat_queries(toy, kFirstRepeat, kTokens + 1, 20);  // nearest ones lie in a row's own block
      const auto policy = make_policy(toy, spec);
      SequenceKv kv = toy.new_sequence();
      const Outputs got = read(toy, *policy, kv, kTokens, chunk);
      const auto next = toy.step(kv, *policy, 1, Phase::kDecode);
      const double found = stats_of(*policy).at("mac_prompt_head_hits");
      EXPECT_GT(found, spec == narrow || spec == kBounded ? 0.1 : 0.6);
      if (want.empty()) {
        want = got;
        decoded = next;
        hits = found;
      }
      EXPECT_TRUE(got == want) << spec << " " << chunk;
      EXPECT_EQ(next, decoded) << spec << " " << chunk;
      EXPECT_EQ(found, hits) << spec << " " << chunk;
    }
  }
}

TEST(MacPrompt, RowsBeforeTheContextAreReadInFull) {
  Repeating toy;
  const std::string late = "mac:min_context=300,window=128,band=32,sink=8,prefill=reuse";
  const auto policy = make_policy(toy, late);
  EXPECT_EQ(policy->next_cut(0), 172);  // from here on rows leave entries
  EXPECT_EQ(policy->next_cut(172), 300);
  EXPECT_EQ(policy->next_cut(300), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(make_policy(toy, "mac")->next_cut(0), std::numeric_limits<int32_t>::max());
  const Outputs want = read(toy, "full"), got = read(toy, late);
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 172, want.begin()));
  EXPECT_LE(largest_difference(got, want), testing::kFloatTolerance);
  EXPECT_TRUE(read(toy, late, kTokens, 50) == got);
  SequenceKv kv = toy.new_sequence();
  read(toy, *policy, kv, 300);
  EXPECT_EQ(stats_of(*policy).at("mac_prompt_head_hits"), 0.0);
  read(toy, *policy, kv, kTokens);
  EXPECT_EQ(stats_of(*policy).at("mac_prompt_group_hits"), 1.0);
}

TEST(MacPrompt, ForksAndCutsGoOnAsTheOriginal) {
  Toy toy({1, 4, 2, 32, KvType::kBF16}, kTokens);
  repeat_queries(toy, kFirstRepeat, kTokens, kLag);
  const auto policy = make_policy(toy, kReuse + ",tau=0.9");
  SequenceKv kv = toy.new_sequence();
  read(toy, *policy, kv, 300);
  const auto other = policy->fork();
  SequenceKv other_kv = kv;
  const Outputs want = read(toy, *policy, kv, kTokens);
  // Another text goes through the fork, which is cut back then.
  testing::change_tokens(toy, 300, 400);
  EXPECT_FALSE(read(toy, *other, other_kv, 400) == Outputs(want.begin(), want.begin() + 100));
  testing::change_tokens(toy, 300, 400);
  other->truncate(300);
  other_kv.truncate(300);
  other->clear_stats();
  EXPECT_TRUE(read(toy, *other, other_kv, kTokens) == want);
  EXPECT_EQ(stats_of(*other).at("mac_prompt_group_hits"), 1.0);
}

// A question that is asked again: its last rows reused what the answer has written over.
TEST(MacPrompt, RowsWhoseEntriesAreGoneAreReadAgain) {
  Toy toy({1, 4, 2, 32, KvType::kBF16}, kTokens);
  const auto policy = make_policy(toy, kReuse);  // whose window is 256
  const auto wanted = [&](int32_t end, int32_t kept) {
    return policy->observed_prompt_rows(end, kept);
  };
  EXPECT_EQ(wanted(300, 0), 300);
  EXPECT_EQ(wanted(300, 30), 270);  // before the first entry
  SequenceKv kv = toy.new_sequence();
  read(toy, *policy, kv, 400);
  EXPECT_EQ(wanted(420, 400), 20);
  EXPECT_EQ(wanted(400, 399), 400);  // that of token 143 has been written over
  policy->truncate(399);
  EXPECT_EQ(wanted(400, 399), 400);
  policy->truncate(120);
  EXPECT_EQ(wanted(400, 120), 400);
}

TEST(MacPrompt, ABadNumberIsNotRemembered) {
  Repeating toy;
  toy.q(0, 200)[5] = NAN;
  const auto policy = make_policy(toy, kReuse + ",tau=0.9");
  SequenceKv kv = toy.new_sequence();
  const Outputs rows = read(toy, *policy, kv, 290);  // up to the row that would repeat it
  EXPECT_EQ(stats_of(*policy).at("mac_nonfinite"), 1.0);
  for (size_t row = 201; row < 290; ++row) {
    for (const float value : rows[row]) ASSERT_TRUE(std::isfinite(value)) << row;
  }
}

TEST(MacPrompt, WhatPromptRowsCannotFollowIsRefused) {
  const auto config = testing::toy_config({});
  for (const std::string option : {"lse_fix=true", "band=0"}) {
    const auto policy = create_policy(policy_entries(), "mac:prefill=reuse," + option, config);
    ASSERT_FALSE(policy) << option;
    EXPECT_EQ(policy.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(policy.error().message.find("prefill=reuse"), std::string::npos);
    EXPECT_TRUE(create_policy(policy_entries(), "mac:" + option, config));
  }
  EXPECT_FALSE(create_policy(policy_entries(), "auto+mac:prefill=reuse", config));
}

}  // namespace
}  // namespace reprise

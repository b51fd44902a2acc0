// What pages get of a decode row's attention, given to the policy that asked for them.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/scripted.h"

namespace reprise {
namespace {

using kernels::Phase;
using testing::add_part;
using testing::ScriptedPolicy;
using testing::Toy;

/// Makes the values of a page's keys one value, so that shares of pages say what is read.
void share_values(Toy& toy, size_t tokens) {
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t token = 0; token < tokens; ++token) {
      std::copy_n(toy.v(layer, token / kPageTokens * kPageTokens), 64, toy.v(layer, token));
    }
  }
}

/// The values, weighed by the shares, are what attention gave the heads of a list together.
void expect_consistent(Toy& toy, const PageShares* shares, const std::vector<float>& out) {
  for (size_t layer = 0; layer < 2; ++layer) {
    const PageShares& own = shares[layer];
    for (size_t list = 0; list < own.lists(); ++list) {
      const size_t heads = own.heads, first = list * heads;
      std::vector<double> sum(32), want(32);
      double total = 0.0;
      for (size_t i = 0; i < own.list(list).size(); ++i) {
        const double share = own.of(list)[i];
        const auto page = static_cast<size_t>(own.list(list)[i]);
        const float* v = toy.v(layer, page * kPageTokens) + first / 2 * 32;
        for (size_t d = 0; d < 32; ++d) sum[d] += share * v[d];
        total += share;
      }
      EXPECT_NEAR(total, static_cast<double>(heads), 1e-5 * static_cast<double>(heads));
      for (size_t d = 0; d < 32 * heads; ++d) {
        want[d % 32] += out[layer * toy.width() + first * 32 + d];
      }
      for (size_t d = 0; d < 32; ++d) {
        ASSERT_NEAR(want[d], sum[d], static_cast<double>(heads) * testing::kFloatTolerance);
      }
    }
  }
}

TEST(PageShares, AreThoseOfWhatIsRead) {
  for (const HeadSplit split :
       {HeadSplit::kShared, HeadSplit::kPerKvHead, HeadSplit::kPerQueryHead}) {
    for (const int threads : {1, 3}) {
      Toy toy({}, 1400, threads);
      share_values(toy, 1400);
      PageShares shares[2];
      const auto select = [&](const QueryRows& rows, Selection& selection) {
        if (rows.phase == Phase::kPrefill) return;
        add_part(selection, {{1300, 1400}});
        SelectionPart& part = selection.parts.emplace_back();
        part.split = split;
        const int32_t lists = split == HeadSplit::kShared      ? 1
                              : split == HeadSplit::kPerKvHead ? 2
                                                               : 4;
        for (int32_t list = 0; list < lists; ++list) {
          const KeyRange ranges[] = {{0, 5 + list}, {40 * (list + 1), 1200 + list}};
          part.add_list(ranges);
        }
      };
      ScriptedPolicy plain(select), asking([&](const QueryRows&rows, Selection&selection) {
        select(rows, selection);
        if (rows.phase == Phase::kDecode) selection.shares = &shares[rows.layer];
      });
      SequenceKv kv = toy.new_sequence(), other = toy.new_sequence();
      toy.step(kv, plain, 1399, Phase::kPrefill);
      toy.step(other, plain, 1399, Phase::kPrefill);
      const auto want = toy.step(kv, plain, 1, Phase::kDecode);
      const auto got = toy.step(other, asking, 1, Phase::kDecode);
      EXPECT_EQ(got, want);
      EXPECT_EQ(shares[0].lists(), split == HeadSplit::kPerQueryHead ? 4u : 2u);
      expect_consistent(toy, shares, got);
    }
  }
}

TEST(PageShares, OfFullAttentionAreOfEveryKey) {
  Toy toy({}, 100);
  share_values(toy, 100);
  PageShares shares[2];
  ScriptedPolicy policy([&](const QueryRows& rows, Selection& selection) {
    if (rows.phase == Phase::kDecode) selection.shares = &shares[rows.layer];
  });
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 99, Phase::kPrefill);
  const auto out = toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_EQ(shares[1].list(1).size(), 7u);
  expect_consistent(toy, shares, out);
}

TEST(PageShares, OfPrefillRowsAreAnError) {
  PageShares shares;
  testing::expect_refused_in_prefill(
      [&](const QueryRows&, Selection& selection) { selection.shares = &shares; });
}

}  // namespace
}  // namespace reprise

// Logits of what a decode row reads, given to the policy that asked for them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "attention/scripted.h"

namespace reprise {
namespace {

using kernels::Phase;
using testing::add_part;
using testing::ScriptedPolicy;
using testing::Toy;

/// exp(logit - lse) of every key, by query head.
std::map<int32_t, double> shares(KeyLogits& logits, size_t head) {
  const size_t list = head / logits.heads;
  const auto values = logits.of(list, head % logits.heads);
  std::map<int32_t, double> found;
  double total = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isinf(values[i])) continue;
    const int32_t page = logits.list(list)[i / kPageTokens];
    const auto key =
        page * static_cast<int32_t>(kPageTokens) + static_cast<int32_t>(i % kPageTokens);
    EXPECT_FALSE(found.contains(key)) << key;
    total += found[key] = std::exp(double{values[i]});
  }
  for (auto& [key, share] : found) share /= total;
  return found;
}

/// The values, weighed by the shares, are what attention gave.
void expect_consistent(Toy& toy, KeyLogits* logits, const std::vector<float>& out) {
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t head = 0; head < 4; ++head) {
      std::vector<double> sum(32);
      for (const auto& [key, share] : shares(logits[layer], head)) {
        const float* v = toy.v(layer, static_cast<size_t>(key)) + head / 2 * 32;
        for (size_t d = 0; d < 32; ++d) sum[d] += share * v[d];
      }
      for (size_t d = 0; d < 32; ++d) {
        ASSERT_NEAR(out[layer * toy.width() + head * 32 + d], sum[d], testing::kFloatTolerance);
      }
    }
  }
}

TEST(KeyLogits, AreThoseOfWhatIsRead) {
  for (const HeadSplit split :
       {HeadSplit::kShared, HeadSplit::kPerKvHead, HeadSplit::kPerQueryHead}) {
    for (const int threads : {1, 3}) {
      Toy toy({}, 1400, threads);
      KeyLogits logits[2];
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
        if (rows.phase == Phase::kDecode) selection.logits = &logits[rows.layer];
      });
      SequenceKv kv = toy.new_sequence(), other = toy.new_sequence();
      toy.step(kv, plain, 1399, Phase::kPrefill);
      toy.step(other, plain, 1399, Phase::kPrefill);
      const auto want = toy.step(kv, plain, 1, Phase::kDecode);
      const auto got = toy.step(other, asking, 1, Phase::kDecode);
      EXPECT_EQ(got, want);
      EXPECT_EQ(logits[0].lists(), split == HeadSplit::kPerQueryHead ? 4u : 2u);
      expect_consistent(toy, logits, got);
    }
  }
}

TEST(KeyLogits, OfFullAttentionAreOfEveryKey) {
  Toy toy({}, 100);
  KeyLogits logits[2];
  ScriptedPolicy policy([&](const QueryRows& rows, Selection& selection) {
    if (rows.phase == Phase::kDecode) selection.logits = &logits[rows.layer];
  });
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, policy, 99, Phase::kPrefill);
  const auto out = toy.step(kv, policy, 1, Phase::kDecode);
  EXPECT_EQ(shares(logits[1], 3).size(), 100u);
  expect_consistent(toy, logits, out);
}

TEST(KeyLogits, OfPrefillRowsAreAnError) {
  KeyLogits logits;
  const auto status = testing::prefill_with(
      [&](const QueryRows&, Selection& selection) { selection.logits = &logits; });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace reprise

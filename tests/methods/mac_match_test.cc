// The parts of MAC-Attention by themselves: ring, match, guard, and how keys are divided.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/float16.h"
#include "methods/mac/match.h"
#include "methods/mac/mean_key.h"
#include "methods/mac/parts.h"
#include "methods/selecting.h"

namespace reprise {
namespace {

constexpr size_t kHeads = 4, kDim = 32;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

using testing::Toy;

ModelConfig config() { return testing::toy_config({1, kHeads, 2, kDim}); }

MacMatch nearest_entry(const MacRing& ring, size_t head, const float* q, const MacLimits& limits,
                       MacSearch& search) {
  MacMatch found;
  nearest_entries(ring, head, q, 0, {&limits, 1}, search, &found);
  return found;
}

struct Filled {
  MacRing ring;
  std::vector<std::vector<float>> q;  // [positions][n_head, head_dim]
};

/// Entries of positions [0, count), whose queries lie around a few centres.
Filled filled(uint32_t window, int32_t count, kernels::KvType type = kernels::KvType::kBF16) {
  Filled out{MacRing(config(), window, type), {}};
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> centres(5 * kHeads * kDim);
  for (float& value : centres) value = normal(random);
  for (int32_t position = 0; position < count; ++position) {
    std::vector<float> q(kHeads * kDim);
    const size_t centre = random() % 5 * q.size();
    for (size_t i = 0; i < q.size(); ++i) q[i] = centres[centre + i] + 0.1f * normal(random);
    std::vector<MacState> states(kHeads);
    for (MacState& state : states) {
      state.lse = random() % 8 == 0 ? kNothing : 1.0f;
      state.anchor = position - static_cast<int32_t>(random() % 20);
    }
    EXPECT_TRUE(out.ring.write(position, q.data(), q.data(), states));
    out.q.push_back(q);
  }
  return out;
}

float rounded(float value) { return to_float(to_bf16(value)); }

/// By definition: the nearest of the valid ones, the newest of equally near ones.
MacMatch expected_match(const Filled& filled, size_t head, const float* q,
                        const MacLimits& limits) {
  MacMatch best;
  float nearest = limits.distance2;
  for (int32_t position = limits.last; position >= limits.first; --position) {
    const MacState& state = filled.ring.state(head, filled.ring.slot(position));
    if (std::isinf(state.lse) || state.anchor < limits.oldest_anchor) continue;
    const float* stored = &filled.q[static_cast<size_t>(position)][head * kDim];
    float distance2 = 0.0f;
    for (size_t d = 0; d < kDim; ++d) {
      const float difference = rounded(q[d]) - rounded(stored[d]);
      distance2 += difference * difference;
    }
    if (!(distance2 < nearest)) continue;
    nearest = distance2;
    best = {position, std::sqrt(distance2)};
  }
  return best;
}

TEST(MacMatch, IsTheNearestEntryThatMayBeReused) {
  for (const uint32_t window : {16, 37, 64, 100}) {
    const Filled all = filled(window, 150);
    MacSearch search;
    int found = 0;
    for (int32_t position = 140; position < 150; ++position) {
      const MacLimits limits = {151 - static_cast<int32_t>(window), position, 150 - 60, 40.0f};
      for (size_t head = 0; head < kHeads; ++head) {
        // Between two stored queries: near to several.
        std::vector<float> q(kDim);
        for (size_t d = 0; d < kDim; ++d) {
          q[d] = (all.q[140][head * kDim + d] +
                  all.q[static_cast<size_t>(position)][head * kDim + d]) /
                 2;
        }
        const MacMatch want = expected_match(all, head, q.data(), limits);
        const MacMatch got = nearest_entry(all.ring, head, q.data(), limits, search);
        EXPECT_EQ(got.position, want.position) << window;
        EXPECT_FLOAT_EQ(got.distance, want.distance);
        found += got.found() ? 1 : 0;
      }
    }
    EXPECT_GT(found, 10) << window;
  }
}

TEST(MacRing, KeepsQueriesAndResultsInEitherType) {
  for (const auto type : {kernels::KvType::kBF16, kernels::KvType::kQ8_0}) {
    const Filled all = filled(37, 50, type);
    std::vector<float> q(kDim), out(kDim);
    for (int32_t position = 13; position < 50; ++position) {
      for (size_t head = 0; head < kHeads; ++head) {
        const float* want = &all.q[static_cast<size_t>(position)][head * kDim];
        const auto size = [](float a, float b) { return std::abs(a) < std::abs(b); };
        const float largest = std::abs(*std::max_element(want, want + kDim, size));
        const size_t slot = all.ring.slot(position);
        all.ring.load_q(head, slot, q.data());
        all.ring.load_out(head, slot, out.data());
        const bool q8 = type == kernels::KvType::kQ8_0;
        for (size_t d = 0; d < kDim; ++d) {
          EXPECT_NEAR(q[d], want[d], largest / (q8 ? 254 : 256) + 1e-7f);  // half a step
          EXPECT_NEAR(out[d], want[d], q8 ? largest / 254 + 1e-7f : 0.0f);
        }
      }
    }
  }
  const MacRing wide(config(), 64), narrow(config(), 64, kernels::KvType::kQ8_0);
  EXPECT_EQ(wide.query_bytes(), 64 * kHeads * kDim * 2);
  EXPECT_EQ(narrow.query_bytes(), 64 * kHeads * (kDim + 4));
  EXPECT_EQ(narrow.bytes(), 64 * (kHeads * (2 * (kDim + 4) + 4 + sizeof(MacState)) + 4));
}

TEST(MacMatch, AQueryFindsItselfIn8Bits) {
  const Filled all = filled(64, 64, kernels::KvType::kQ8_0);
  MacSearch search;
  int found = 0;
  for (int32_t position = 0; position < 64; ++position) {
    const float* q = all.q[static_cast<size_t>(position)].data();
    const MacMatch match = nearest_entry(all.ring, 0, q, {0, 63, -99, 0.05f}, search);
    if (std::isinf(all.ring.state(0, all.ring.slot(position)).lse)) continue;
    EXPECT_EQ(match.position, position);
    EXPECT_LT(match.distance, 0.1f);
    ++found;
  }
  EXPECT_GT(found, 40);
}

TEST(MacMatch, TheNewestOfEqualQueriesWins) {
  MacRing ring(config(), 32);
  const std::vector<float> q(kHeads * kDim, 0.75f);
  std::vector<MacState> states(kHeads);
  for (MacState& state : states) state.lse = 0.0f;
  for (int32_t position = 0; position < 70; ++position)
    ring.write(position, q.data(), q.data(), states);
  MacSearch search;
  EXPECT_EQ(nearest_entry(ring, 1, q.data(), {39, 69, 0, 1.0f}, search).position, 69);
  EXPECT_EQ(nearest_entry(ring, 1, q.data(), {39, 50, 0, 1.0f}, search).position, 50);
  EXPECT_EQ(nearest_entry(ring, 1, q.data(), {39, 69, 0, 1.0f}, search).distance, 0.0f);
  EXPECT_FALSE(nearest_entry(ring, 1, q.data(), {39, 69, 0, 0.0f}, search).found());
  EXPECT_FALSE(nearest_entry(ring, 1, q.data(), {70, 90, 0, 1.0f}, search).found());
  ring.truncate(60);
  EXPECT_EQ(nearest_entry(ring, 1, q.data(), {39, 69, 0, 1.0f}, search).position, 59);
}

TEST(MacMatch, AnInvalidNearestEntryDoesNotHideAValidOne) {
  MacRing ring(config(), 16);
  std::vector<float> near(kHeads * kDim, 1.0f), far(kHeads * kDim, 1.0625f);
  std::vector<MacState> empty(kHeads), full(kHeads);
  for (MacState& state : full) state.lse = 0.0f;
  ring.write(3, far.data(), far.data(), full);
  ring.write(4, near.data(), near.data(), empty);
  MacSearch search;
  EXPECT_EQ(nearest_entry(ring, 0, near.data(), {0, 10, 0, 1.0f}, search).position, 3);
}

TEST(MacMatch, AnEntryMayHaveNoResult) {
  MacRing ring(config(), 16);
  const std::vector<float> q(kHeads * kDim, 1.0f);
  EXPECT_TRUE(ring.write_query(3, q.data()));
  ring.settle();
  MacSearch search;
  EXPECT_FALSE(nearest_entry(ring, 0, q.data(), {0, 10, 0, 1.0f}, search).found());
  EXPECT_EQ(nearest_entry(ring, 0, q.data(), {0, 10, 0, 1.0f, false}, search).position, 3);
}

std::string saved(const MacRing& ring) {
  StateWriter out;
  ring.save(out);
  return out.take();
}

// The largest share fades by a window's part a position, also over rows without results.
TEST(MacMatch, PeaksFadeOverAWindow) {
  MacRing ring(config(), 20);
  const std::vector<float> q(kHeads * kDim, 1.0f);
  std::vector<MacState> states(kHeads);
  const auto peak = [&](int32_t position) { return ring.state(1, ring.slot(position)).peak; };
  const auto write = [&](int32_t position, float share) {
    for (MacState& state : states) state.share = share;
    ring.settle();
    ring.write(position, q.data(), q.data(), states);
    ring.set_peaks(position);
  };
  write(7, 0.5f);
  EXPECT_EQ(peak(7), 0.5f);
  write(8, 0.25f);
  EXPECT_FLOAT_EQ(peak(8), 0.5f * 0.95f);
  EXPECT_FLOAT_EQ(ring.state(1, ring.slot(8)).weight(), std::sqrt(0.25f * 0.5f * 0.95f));
  for (int32_t position = 9; position < 40; ++position) ring.write_query(position, q.data());
  write(40, 0.0f);
  const MacState& rested = ring.state(1, ring.slot(39));
  EXPECT_EQ(rested.share, rested.peak);  // a try does not take it for one that weighs nothing
  EXPECT_NEAR(peak(40), 0.5f * std::pow(0.95f, 33.0f), 1e-6f);
  write(41, 0.75f);
  EXPECT_EQ(peak(41), 0.75f);
  write(43, 0.125f);  // nothing is known of the position before
  EXPECT_EQ(peak(43), 0.125f);
  ring.truncate(41);
  write(41, 0.25f);
  EXPECT_EQ(peak(41), 0.25f);
}

// A prompt row learns its shares from all that it reads.
TEST(MacMatch, SharesOfPromptRowsSetTheirPeaks) {
  MacRing ring(config(), 16);
  const std::vector<float> q(kHeads * kDim, 1.0f), lse(kHeads, std::log(4.0f));
  std::vector<MacState> states(kHeads);
  for (int32_t position = 3; position < 6; ++position) {
    for (MacState& state : states) state.lse = std::log(position == 3 ? 2.0f : 1.0f);
    ring.write(position, q.data(), q.data(), states);
  }
  for (int32_t position = 3; position < 6; ++position) ring.set_shares(position, lse.data(), true);
  EXPECT_FLOAT_EQ(ring.state(0, ring.slot(3)).peak, 0.5f);
  EXPECT_FLOAT_EQ(ring.state(0, ring.slot(5)).share, 0.25f);
  EXPECT_FLOAT_EQ(ring.state(0, ring.slot(5)).peak, 0.5f * std::pow(0.9375f, 2.0f));
  ring.set_shares(4, lse.data(), false);
  EXPECT_FLOAT_EQ(ring.state(0, ring.slot(4)).peak, 0.25f);
}

// Across the ends of tiles and of a ring that is no whole number of them, after gaps, and with
// entries that have results in between.
TEST(MacMatch, QueriesThatWaitAreThoseThatAreStoredAtOnce) {
  const size_t width = kHeads * kDim;
  for (const uint32_t window : {16u, 40u}) {
    MacRing late(config(), window), at_once(config(), window);
    std::vector<MacState> states(kHeads);
    for (MacState& state : states) state.lse = 1.0f;
    std::vector<float> q(width);
    const auto write = [&](int32_t position) {
      for (size_t d = 0; d < width; ++d) q[d] = static_cast<float>((position * 7 + 3 * d) % 11);
      if (position == 60) q[5] = NAN;
      for (MacRing* ring : {&late, &at_once}) {
        if (position % 23 == 22) {
          EXPECT_TRUE(ring->write(position, q.data(), q.data(), states));
        } else {
          EXPECT_EQ(ring->write_query(position, q.data()), position != 60);
        }
        EXPECT_EQ(ring->tag(ring->slot(position)), position == 60 ? -1 : position);
      }
      at_once.settle();
      EXPECT_EQ(saved(late), saved(at_once)) << position;
    };
    for (int32_t position = 0; position < 30; ++position) write(position);
    for (int32_t position = 35; position < 70; ++position) write(position);
    late.truncate(66);
    at_once.truncate(66);
    for (const int32_t position : {66, 67, 67}) write(position);
    const MacRing copy = late;
    EXPECT_EQ(saved(copy), saved(at_once));
    late.settle();
    EXPECT_EQ(late.state(1, late.slot(67)).lse, kNothing);
    EXPECT_EQ(saved(late), saved(at_once));
  }
}

TEST(MacMatch, WhatIsNotFiniteNeitherMatchesNorIsStored) {
  MacRing ring(config(), 16);
  std::vector<float> q(kHeads * kDim, 1.0f);
  std::vector<MacState> states(kHeads);
  for (MacState& state : states) state.lse = 0.0f;
  EXPECT_TRUE(ring.write(1, q.data(), q.data(), states));
  MacSearch search;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> damaged = q;
    damaged[kDim + 3] = bad;
    EXPECT_FALSE(nearest_entry(ring, 1, &damaged[kDim], {0, 5, 0, 1e30f}, search).found());
    EXPECT_TRUE(nearest_entry(ring, 0, damaged.data(), {0, 5, 0, 1e30f}, search).found());
    EXPECT_FALSE(ring.write(2, damaged.data(), q.data(), states));
    EXPECT_FALSE(ring.write(2, q.data(), damaged.data(), states));
    EXPECT_EQ(ring.tag(2), -1);
  }
}

TEST(MacMeanKey, IsWeighedAsAttentionWeighsKeys) {
  Toy toy({1, 4, 2, 32, kernels::KvType::kBF16}, 700);
  const auto full = testing::make_policy(toy, "full");
  SequenceKv kv = toy.new_sequence();
  toy.step(kv, *full, 700, kernels::Phase::kPrefill);
  const Row row = {0, 699};
  QueryRows rows;
  rows.rows = {&row, 1};
  rows.kv = &kv;
  const std::vector<int32_t> begin = {16, 300, 640}, end = {688, 688, 640};  // the last one: none
  std::vector<float> lse(3), mean(3 * 32, 9.0f);
  std::vector<std::vector<double>> want(3, std::vector<double>(32));
  for (size_t r = 0; r < 3; ++r) {
    std::vector<int32_t> keys;
    for (int32_t key = begin[r]; key < end[r]; ++key) keys.push_back(key);
    const float* q = toy.q(0, 5) + r * 32;
    double sum = 0.0;
    for (const int32_t key : keys) {
      const auto k = testing::stored(kv, 0, 1, key);
      sum += std::exp(testing::dot(q, k.data(), 32) * toy.config().attention_scale);
    }
    lse[r] = static_cast<float>(std::log(sum));
    const auto shares = testing::weights(toy, kv, 0, q, 1, keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto k = testing::stored(kv, 0, 1, keys[i]);
      for (size_t d = 0; d < 32; ++d) want[r][d] += shares[i] * k[d];
    }
  }
  MeanKeyScratch scratch;
  mean_keys(rows, toy.config(), {1, 3, toy.q(0, 5), begin.data(), end.data(), lse.data()}, scratch,
            mean.data());
  for (size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(mean[i], want[i / 32][i % 32], 1e-4) << i;
}

TEST(MacCut, GrowsInWholeSteps) {
  const MacCut cut = {64, 256, 16};
  EXPECT_EQ(cut.at(0), 0);
  EXPECT_EQ(cut.at(255 + 16), 16);
  EXPECT_EQ(cut.at(255 + 15), 0);
  EXPECT_EQ(cut.at(1000), 736);
  const MacCut published = {0, 256, 1};
  EXPECT_EQ(published.at(1000), 745);
  for (const MacCut& each : {cut, published, MacCut{1, 0, 16}, MacCut{100, 7, 64}}) {
    EXPECT_GT(each.at(each.first_position()), each.sink);
    EXPECT_LE(each.at(each.first_position() - 1), each.sink);
  }
}

/// How often a query head of the selection sees every key; apart for captured parts.
std::vector<int> counts(const Selection& selection, size_t head, size_t group, int32_t end,
                        bool captured) {
  std::vector<int> seen(static_cast<size_t>(end));
  for (const SelectionPart& part : selection.parts) {
    if (part.captured != captured) continue;
    const size_t list = part.split == HeadSplit::kShared      ? 0
                        : part.split == HeadSplit::kPerKvHead ? head / group
                                                              : head;
    for (const KeyRange& range : part.list(list)) {
      for (int32_t key = range.begin; key < std::min(end, range.end); ++key) {
        const bool hidden = !part.head_begin.empty() && key < part.head_begin[head];
        if (!hidden) ++seen[static_cast<size_t>(key)];
      }
    }
  }
  return seen;
}

TEST(MacKeys, EveryKeyIsReusedOrReadOnce) {
  const std::vector<int32_t> reused = {0, 0, 128, 160, 160, 0, 192, 192};  // groups of two
  for (const int32_t sink : {0, 5, 64}) {
    Selection selection, everything;
    ASSERT_TRUE(divide_keys({sink, 208, 500, 2, reused}, everything, selection));
    for (size_t head = 0; head < reused.size(); ++head) {
      const auto captured = counts(selection, head, 2, 500, true);
      const auto fresh = counts(selection, head, 2, 500, false);
      for (int32_t key = 0; key < 500; ++key) {
        const auto at = static_cast<size_t>(key);
        EXPECT_EQ(fresh[at], key < sink || key >= 208) << key;
        EXPECT_EQ(captured[at], key >= std::max(sink, reused[head]) && key < 208) << key;
      }
    }
  }
}

TEST(MacKeys, KvHeadsThatReadAlikeShareAList) {
  const Selection everything;
  for (const int32_t begin : {0, 160, 208}) {
    Selection selection;
    const std::vector<int32_t> reused(6, begin);
    ASSERT_TRUE(divide_keys({64, 208, 500, 3, reused}, everything, selection));
    EXPECT_EQ(selection.parts.front().split, HeadSplit::kShared);
    for (size_t head = 0; head < 6; ++head) {
      const auto captured = counts(selection, head, 3, 500, true);
      for (int32_t key = 0; key < 500; ++key) {
        EXPECT_EQ(captured[static_cast<size_t>(key)], key >= std::max(64, begin) && key < 208);
      }
    }
  }
}

TEST(MacKeys, HeadsThatReuseNothingReadWhatTheInnerPolicySelects) {
  const std::vector<int32_t> reused = {0, 128, 160, 160, 0, 0};
  for (const HeadSplit split :
       {HeadSplit::kShared, HeadSplit::kPerKvHead, HeadSplit::kPerQueryHead}) {
    Selection inner, selection;
    inner.all = false;
    inner.index_bytes_read = 77;
    SelectionPart& part = inner.parts.emplace_back();
    part.split = split;
    const size_t lists = split == HeadSplit::kShared ? 1 : split == HeadSplit::kPerKvHead ? 3 : 6;
    for (size_t i = 0; i < lists; ++i) {
      const auto at = static_cast<int32_t>(i);
      part.add_list(std::vector<KeyRange>{{0, 20 + at}, {60, 90}, {180 + at, 300}});
    }
    for (const KeyRange& range : part.ranges) {
      for (int32_t key = range.begin; key < range.end; ++key) part.bias.push_back(0.5f * key);
    }
    ASSERT_TRUE(divide_keys({16, 208, 300, 2, reused}, inner, selection));
    EXPECT_EQ(selection.index_bytes_read, 77u);
    for (size_t head = 0; head < reused.size(); ++head) {
      const auto at = static_cast<int32_t>(split == HeadSplit::kShared      ? 0
                                           : split == HeadSplit::kPerKvHead ? head / 2
                                                                            : head);
      const auto captured = counts(selection, head, 2, 300, true);
      for (int32_t key = 0; key < 300; ++key) {
        const bool between = key >= 16 && key < 208;
        const bool picked = key < 20 + at || (key >= 60 && key < 90) || key >= 180 + at;
        const bool read = between && (reused[head] > 0 ? key >= reused[head] : picked);
        EXPECT_EQ(captured[static_cast<size_t>(key)], read) << head << " " << key;
      }
    }
    for (const SelectionPart& each : selection.parts) {
      size_t i = 0;
      for (const KeyRange& range : each.ranges) {
        for (int32_t key = range.begin; key < range.end && !each.bias.empty(); ++key) {
          ASSERT_EQ(each.bias[i++], 0.5f * key);
        }
      }
      EXPECT_EQ(i, each.bias.size());
    }
  }
}

TEST(MacKeys, ASelectionWithAMeanValueIsLeftAlone) {
  Selection inner, selection;
  inner.all = false;
  inner.mean.alpha.assign(2, 0.5f);
  const std::vector<int32_t> reused(2, 0);
  EXPECT_FALSE(divide_keys({0, 16, 32, 2, reused}, inner, selection));
  EXPECT_TRUE(selection.all);
}

}  // namespace
}  // namespace reprise

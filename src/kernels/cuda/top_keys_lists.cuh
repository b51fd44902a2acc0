// Words among which the best of a query are, in shared memory. They are collected in any order, and
// when there is no more room the best k of them are kept.
#pragma once

#include <cfloat>

#include "kernels/cuda/top_keys.h"

namespace reprise::kernels::cuda {

namespace top {

// Room for the words of a query: many more than k, so that it is seldom full.
REPRISE_HOST_DEVICE constexpr uint32_t room_of(uint32_t k) { return (k + 16 + 31) / 32 * 32; }
constexpr uint32_t kMostRoom = room_of(kMaxTopKeys);

// -0 and 0 are equal. score: neither NaN nor -inf.
__device__ inline RankedWord ranked(float score, int32_t key) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return RankedWord{order} << 32 | static_cast<uint32_t>(key);
}

// The upper half of a score's word, whatever its key.
__device__ inline uint32_t upper_of(float score) {
  return static_cast<uint32_t>(ranked(score, 0) >> 32);
}

// The float of an upper half; NaN for 0.
__device__ inline float ordered_float(uint32_t order) {
  return __uint_as_float((order >> 31) != 0 ? order ^ 0x80000000u : ~order);
}

// What later scores must reach to come before k words of which this is the last: more than its
// score, as keys come from the newest on.
__device__ inline float least_score(RankedWord last) {
  return ordered_float(static_cast<uint32_t>(last >> 32) + 1);
}

template <uint32_t kOwn>
__device__ void keep_best_of(RankedWord* words, uint32_t count, uint32_t k) {
  RankedWord own[kOwn];
  uint32_t before[kOwn] = {};
#pragma unroll
  for (uint32_t i = 0; i < kOwn; ++i) {
    const uint32_t at = threadIdx.x % 32 + i * 32;
    own[i] = at < count ? words[at] : 0;
  }
#pragma unroll 4
  for (uint32_t j = 0; j < count; ++j) {
    const RankedWord other = words[j];
#pragma unroll
    for (uint32_t i = 0; i < kOwn; ++i) before[i] += other > own[i] ? 1 : 0;
  }
  __syncwarp();
#pragma unroll
  for (uint32_t i = 0; i < kOwn; ++i) {
    if (own[i] != 0 && before[i] < k) words[before[i]] = own[i];
  }
  __syncwarp();
}

// The best k of different words, in order, take the first places. Returns how many they are. All
// lanes of a warp call.
__device__ inline uint32_t keep_best(RankedWord* words, uint32_t count, uint32_t k) {
  if (count <= 32) {
    keep_best_of<1>(words, count, k);
  } else {
    keep_best_of<kMostRoom / 32>(words, count, k);
  }
  return min(count, k);
}

// Lists of so many words each, which word(list, place) gives; 0: there is none. Loops over them
// stay loops: a warp alone waits longer for code that it meets once than for words.
template <typename Word>
struct WordLists {
  uint32_t lists, each;
  Word word;

  // f(each lane's next word). kTogether: words that are on their way together.
  template <uint32_t kTogether, typename F>
  __device__ void for_words(const F& f) const {
    const uint32_t bits = each > 1 ? 32 - __clz(each - 1) : 0, count = lists << bits;
#pragma unroll 1
    for (uint32_t start = threadIdx.x % 32; start - threadIdx.x % 32 < count;
         start += 32 * kTogether) {
      RankedWord words[kTogether];
#pragma unroll
      for (uint32_t i = 0; i < kTogether; ++i) {
        const uint32_t at = start + i * 32, place = at & ((1u << bits) - 1);
        words[i] = at < count && place < each ? word(at >> bits, place) : 0;
      }
#pragma unroll
      for (uint32_t i = 0; i < kTogether; ++i) f(words[i]);
    }
  }
};

// The k-th largest of the lanes' values; 0 if k > 32. All lanes of a warp call.
template <typename T>
__device__ T kth_of_lanes(uint32_t k, T own) {
  uint32_t before = 0;
#pragma unroll 8
  for (uint32_t other = 0; other < 32; ++other) {
    const T its = __shfl_sync(~0u, own, static_cast<int>(other));
    before += its > own || (its == own && other < threadIdx.x % 32) ? 1 : 0;
  }
  const uint32_t owner = __ballot_sync(~0u, before + 1 == k);
  return owner != 0 ? __shfl_sync(~0u, own, __ffs(static_cast<int>(owner)) - 1) : 0;
}

// There are at least k words as large as this; 0 where that says nothing.
template <typename Word>
__device__ RankedWord least_of_best(uint32_t k, const WordLists<Word>& words) {
  if (k > 32) return 0;
  RankedWord best = 0;
  words.template for_words<16>([&](RankedWord next) { best = next > best ? next : best; });
  return kth_of_lanes(k, best);
}

// Room for what best_of() collects: the best k, and a word of every lane.
REPRISE_HOST_DEVICE constexpr uint32_t merge_room_of(uint32_t k) { return k + 32; }
constexpr uint32_t kMostMergeRoom = merge_room_of(kMaxTopKeys);
static_assert(kMostMergeRoom <= kMostRoom);

// The best k of all words go to best [merge_room_of(k)], in order. Returns how many they are. All
// lanes of a warp call.
template <typename Word>
__device__ uint32_t best_of(uint32_t k, const WordLists<Word>& words, RankedWord* best) {
  const uint32_t lanes_before = (1u << threadIdx.x % 32) - 1;
  RankedWord least = least_of_best(k, words);
  uint32_t held = 0;
  words.template for_words<1>([&](RankedWord next) {
    const bool reaches = next != 0 && next >= least;
    const uint32_t chosen = __ballot_sync(~0u, reaches);
    if (chosen == 0) return;
    if (held + __popc(chosen) > merge_room_of(k)) {
      held = keep_best(best, held, k);
      least = best[k - 1];
    }
    if (reaches) best[held + __popc(chosen & lanes_before)] = next;
    held += __popc(chosen);
    __syncwarp();
  });
  return keep_best(best, held, k);
}

}  // namespace top

}  // namespace reprise::kernels::cuda

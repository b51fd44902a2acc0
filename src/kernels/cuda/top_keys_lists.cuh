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

// f(each lane's next word of count, or 0); word(i) gives one. Several are on their way together.
template <typename Word, typename F>
__device__ void for_words(uint32_t count, const Word& word, const F& f) {
  constexpr uint32_t kTogether = 8;
  for (uint32_t start = 0; start < count; start += 32 * kTogether) {
    RankedWord words[kTogether];
#pragma unroll
    for (uint32_t i = 0; i < kTogether; ++i) {
      const uint32_t at = start + i * 32 + threadIdx.x % 32;
      words[i] = at < count ? word(at) : 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < kTogether; ++i) {
      if (start + i * 32 < count) f(words[i]);
    }
  }
}

// There are at least k words as large as the k-th of the lanes' largest ones; 0 where that says
// nothing.
template <typename Word>
__device__ RankedWord kth_of_lanes(uint32_t k, uint32_t count, const Word& word) {
  if (k > 32 || count <= 32) return 0;
  const uint32_t lane = threadIdx.x % 32;
  RankedWord best = 0;
  for_words(count, word, [&](RankedWord next) { best = next > best ? next : best; });
  uint32_t before = 0;
#pragma unroll 8
  for (uint32_t other = 0; other < 32; ++other) {
    const RankedWord its = __shfl_sync(~0u, best, static_cast<int>(other));
    before += its > best || (its == best && other < lane) ? 1 : 0;
  }
  const uint32_t owner = __ffs(static_cast<int>(__ballot_sync(~0u, before + 1 == k))) - 1;
  return __shfl_sync(~0u, best, static_cast<int>(owner));
}

// The best k of count words, some of which may be 0, go to best [room_of(k)], in order. Returns how
// many they are. All lanes of a warp call.
template <typename Word>
__device__ uint32_t best_of(uint32_t k, uint32_t count, const Word& word, RankedWord* best) {
  const uint32_t room = room_of(k), lanes_before = (1u << threadIdx.x % 32) - 1;
  RankedWord least = kth_of_lanes(k, count, word);
  uint32_t held = 0;
  for_words(count, word, [&](RankedWord next) {
    uint32_t chosen = __ballot_sync(~0u, next != 0 && next >= least);
    // Half of the lanes at a time, for which there is room.
    for (uint32_t half = 0; half < 2 && chosen != 0; ++half) {
      const uint32_t now = chosen & (half == 0 ? 0xffffu : 0xffff0000u);
      if (held + __popc(now) > room) {
        held = keep_best(best, held, k);
        least = best[k - 1];
      }
      if ((now >> threadIdx.x % 32 & 1) != 0) best[held + __popc(now & lanes_before)] = next;
      held += __popc(now);
      __syncwarp();
    }
  });
  return keep_best(best, held, k);
}

}  // namespace top

}  // namespace reprise::kernels::cuda

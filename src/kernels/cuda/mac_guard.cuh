// Whether a launch of MAC-Attention compares. Bytes that reuse has saved, of which the guards of KV
// heads keep averages, are weighed against what it costs: rings that are read, and the time that
// blocks wait, in bytes that they could read meanwhile. A launch in which that does not pay rests:
// it reads everything as decode attention does, and its rows leave queries without results in
// their rings. Now and then it tries: once it has read, it compares with those for the guards
// alone.
//
// All blocks must come to the same verdict: what it follows from is written only by steps at other
// positions, or once all blocks have met.
#pragma once

#include "kernels/cuda/mac_lists.cuh"
#include "kernels/cuda/mac_ring.cuh"

namespace reprise::kernels::cuda {

namespace mac {

enum class Mode { kRest, kTry, kReuse };

struct Verdict {
  Mode mode;
  bool compares;  // some pair
};

// What guards make of a pair of a guarded launch.
struct Prospect {
  float gain = 0.0f;    // bytes a step that comparing saves, if it does
  float missed = 0.0f;  // share of steps that read keys far back
  float hope = 0.0f;    // bytes that it could save at best
  bool due = false;     // to be tried
};

template <typename S>
constexpr float kKeyBytes = 2.0f * S::kTileBytes / kPageTokens;

template <typename S>
__device__ inline float ring_bytes(const Params& p) {
  constexpr size_t kEntry = kQueryBytes<S::kHeadDim, S::kCoded> + sizeof(MacEntry);
  return static_cast<float>(p.ring.window * p.group * kEntry) + p.rules.costs.pair;
}

// Of a row's keys between sinks and band.
template <typename S>
__device__ inline float captured_bytes(const Row& row) {
  return static_cast<float>(row.captured * kPageTokens) * kKeyBytes<S>;
}

// Of those that a sparse list names: it has the fresh ones, too. Once lists are there.
template <typename S>
__device__ inline float listed_bytes(const Params& p, const Row& row, uint32_t pair) {
  const uint32_t pages = p.list_pages(pair);
  const uint32_t listed = min(row.captured, pages - min(pages, row.fresh));
  return static_cast<float>(listed * kPageTokens) * kKeyBytes<S>;
}

// For the verdict of the next position. One thread.
template <typename S>
__device__ inline void note_listed(const Params& p, const Lists& lists, uint32_t pair) {
  const Row& row = lists.row(p, pair);
  if (p.sparse) lists.guard(p, pair)->listed[row.position % 2] = listed_bytes<S>(p, row, pair);
}

template <typename S>
__device__ inline Prospect prospect(const Params& p, const Lists& lists, uint32_t pair) {
  constexpr uint32_t kFirst = 4;     // steps that averages need
  constexpr int32_t kInterval = 64;  // steps between tries, twice as many after one in vain
  const Row& row = lists.row(p, pair);
  Prospect prospect;
  prospect.missed = row.captured > row.near ? 1.0f : 0.0f;
  if (!row.may_reuse(p)) return prospect;
  const MacGuardState& state = *lists.guard(p, pair);
  const float spent = ring_bytes<S>(p);
  const float most = p.sparse ? state.listed[(row.position + 1) % 2] : captured_bytes<S>(row);
  prospect.hope = fmaxf(0.0f, most - spent);
  const int32_t since = row.position - state.tried;
  prospect.due = state.seen < kFirst || since < 0 || since >= kInterval << state.pauses;
  if (state.seen < kFirst || state.saved <= spent) return prospect;
  prospect.gain = state.saved - spent;
  prospect.missed *= state.missed;
  return prospect;
}

// Sums of every thread's numbers, the same in all blocks. All threads.
template <typename S>
__device__ inline float4 block_sum(float4 own) {
  __shared__ float4 parts[S::kWarps];
  for (int mask = 1; mask < 32; mask *= 2) {
    own.x += __shfl_xor_sync(~0u, own.x, mask);
    own.y += __shfl_xor_sync(~0u, own.y, mask);
    own.z += __shfl_xor_sync(~0u, own.z, mask);
    own.w += __shfl_xor_sync(~0u, own.w, mask);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
  __syncthreads();
  float4 sum = parts[0];
  for (uint32_t warp = 1; warp < S::kWarps; ++warp) {
    sum.x += parts[warp].x;
    sum.y += parts[warp].y;
    sum.z += parts[warp].z;
    sum.w += parts[warp].w;
  }
  return sum;
}

// Fills lists.compares. All threads.
template <typename S>
__device__ Verdict find_verdict(const Params& p, const Lists& lists) {
  constexpr float kMargin = 1.1f;
  constexpr uint32_t kPays = 1, kDue = 2;
  float4 sums = {};  // gain, missed, hope, due; or pairs that store in x
  for (uint32_t pair = threadIdx.x; pair < p.pairs; pair += S::kThreads) {
    const Row& row = lists.row(p, pair);
    if (!p.rules.guarded) {
      lists.compares[pair] = row.may_reuse(p) ? kPays : 0;
      sums.x += row.stores(p) ? 1.0f : 0.0f;
      continue;
    }
    const Prospect own = prospect<S>(p, lists, pair);
    lists.compares[pair] = (own.gain > 0.0f ? kPays : 0) | (own.due ? kDue : 0);
    sums.x += own.gain;
    sums.y += own.missed;
    sums.z += own.hope;
    sums.w += own.due ? 1.0f : 0.0f;
  }
  sums = block_sum<S>(sums);
  const MacCosts& costs = p.rules.costs;
  Mode mode = Mode::kRest;
  if (!p.rules.guarded) {
    if (sums.x > 0.0f) mode = Mode::kReuse;
  } else if (sums.x > kMargin * (costs.meeting + costs.far * fminf(1.0f, sums.y))) {
    mode = Mode::kReuse;
  } else if (sums.w > 0.0f && sums.z > kMargin * costs.meeting) {
    mode = Mode::kTry;
  }
  bool compares = false;
  for (uint32_t pair = threadIdx.x; pair < p.pairs; pair += S::kThreads) {
    const uint32_t counts = mode == Mode::kReuse ? kPays | kDue : mode == Mode::kTry ? kDue : 0;
    lists.compares[pair] = (lists.compares[pair] & counts) != 0 ? 1 : 0;
    compares = compares || lists.compares[pair] != 0;
  }
  return {mode, __syncthreads_or(compares ? 1 : 0) != 0};
}

// The first key between sinks and band that a pair reads, once that is decided.
__device__ inline int32_t first_captured(const Params& p, const Lists& lists, uint32_t pair) {
  int32_t begin = lists.row(p, pair).cut;
#pragma unroll 1
  for (uint32_t head = 0; head < p.group; ++head) {
    begin = min(begin, lists.begin(p, pair, head));
  }
  return begin;
}

// Tells a guard what a step saved, or would have. One thread, once all blocks have met.
template <typename S>
__device__ inline void judge(const Params& p, const Lists& lists, uint32_t pair, bool reuses) {
  constexpr float kWeight = 1.0f / 64, kTryWeight = 1.0f / 8;  // see src/methods/mac/guard.h
  constexpr uint32_t kMostPauses = 4;
  const Row& row = lists.row(p, pair);
  MacGuardState& state = *lists.guard(p, pair);
  const int32_t skipped = first_captured(p, lists, pair) - row.sink;
  const float share = static_cast<float>(skipped) / fmaxf(1.0f, row.cut - row.sink);
  const float saves = share * (p.sparse ? listed_bytes<S>(p, row, pair)
                                        : static_cast<float>(row.cut - row.sink) * kKeyBytes<S>);
  const float missed = lists.far_pages(p, pair) > 0 ? 1.0f : 0.0f;
  const float first = 1.0f / static_cast<float>(state.seen + 1);
  const float weight = fmaxf(first, reuses ? kWeight : kTryWeight);
  state.saved += (saves - state.saved) * weight;
  state.missed += (missed - state.missed) * weight;
  ++state.seen;
  state.tried = row.position;
  const bool in_vain = saves <= ring_bytes<S>(p);
  state.pauses = in_vain ? min(state.pauses + 1, kMostPauses) : 0;
}

// Counts a step of a pair that may reuse, and lets its guard see it, once it is decided. One
// thread.
template <typename S>
__device__ void count_step(const Params& p, const Lists& lists, uint32_t pair) {
  note_listed<S>(p, lists, pair);
  const Match* matches = lists.matches + pair * p.group;
  const Row& row = lists.row(p, pair);
  unsigned long long reused = 0, found = 0, lag = 0;
  float distance = 0.0f;
#pragma unroll 1  // the code is rarely in a cache
  for (uint32_t head = 0; head < p.group; ++head) {
    const Match& match = matches[head];
    found += match.position != -1 ? 1 : 0;
    if (match.position < 0) continue;
    ++reused;
    lag += static_cast<uint32_t>(row.position - match.position);
    distance += sqrtf(match.distance2);
  }
  MacCounters* counters = lists.counters(p, pair);
  atomicAdd(&counters->steps, 1ull);
  atomicAdd(&counters->keys, static_cast<unsigned long long>(row.position + 1));
  if (lists.compares[pair] == 0) return;
  atomicAdd(&counters->compared, 1ull);
  atomicAdd(&counters->head_hits, found);
  if (reused > 0) {
    const int32_t skipped = first_captured(p, lists, pair) - row.sink;
    atomicAdd(&counters->group_hits, skipped > 0 ? 1ull : 0ull);
    atomicAdd(&counters->reused_heads, reused);
    atomicAdd(&counters->skipped, static_cast<unsigned long long>(skipped));
    atomicAdd(&counters->lag, lag);
    atomicAdd(&counters->distance, static_cast<double>(distance));
  }
  if (!p.rules.guarded) return;
  // Rows that rested left no results to be found: the guard waits until they are out of reach.
  MacGuardState& state = *lists.guard(p, pair);
  state.rested = min(state.rested, row.position - 1);  // the sequence may have been cut
  if (row.position - state.rested > p.rules.max_gap) judge<S>(p, lists, pair, true);
}

}  // namespace mac

}  // namespace reprise::kernels::cuda

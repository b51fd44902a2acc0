// The end of a step of MAC-Attention for one pair: merges what blocks computed with what is reused,
// and stores the pair's results in its ring.
#pragma once

#include "kernels/cuda/mac_lists.cuh"
#include "kernels/cuda/mac_ring.cuh"
#include "kernels/cuda/paged_decode_merge.cuh"
#include "kernels/cuda/row_math.cuh"

namespace reprise::kernels::cuda {

namespace mac {

using decode::kLn2, decode::Merged;

constexpr float kLog2E = 1.44269504f;

// Rows of the partial results of a pair: fresh ones, then those of near and of far lists.
struct PairPieces {
  uint32_t fresh, near, far;  // how many
  uint32_t fresh_row, near_row, far_row;

  __device__ uint32_t count() const { return fresh + near + far; }
  __device__ uint32_t row(uint32_t n) const {
    if (n < fresh) return fresh_row + n;
    n -= fresh;
    return n < near ? near_row + n : far_row + n - near;
  }
};

__device__ inline float natural_lse(const Merged& m) {
  return m.total > 0.0f ? (m.base + log2f(m.total)) * kLn2 : -INFINITY;
}

// A piece, of elements (i, i + 1) of [group, D].
template <int D>
__device__ inline void send_piece(const Params& p, uint32_t launch, uint32_t row, uint32_t i,
                                  const Merged& m) {
  const auto words = [](float2 two) -> uint2 {
    return {__float_as_uint(two.x), __float_as_uint(two.y)};
  };
  send(p.piece_sums + (size_t{row} * p.group * D + i) / 2, launch, words(m.sum));
  if (i % D != 0) return;
  send(p.piece_weights + size_t{row} * p.group + i / D, launch, words({m.base, m.total}));
}

// Elements (i, i + 1) of [group, D] over the fresh and over the captured pieces, which are relative
// to bases of their own, so that neither vanishes beside the other. Waits for the pieces.
template <int D>
__device__ void merge_pieces(const Params& p, const PairPieces& pieces, uint32_t launch, uint32_t i,
                             Merged& fresh, Merged& captured) {
  constexpr uint32_t kAtOnce = 8;  // loads in flight
  const uint32_t count = pieces.count();
#pragma unroll 1  // the code is rarely in a cache
  for (uint32_t start = 0; start < count; start += kAtOnce) {
    uint2 words[2 * kAtOnce];
    receive(launch, words, [&](uint32_t k) {
      const size_t row = size_t{pieces.row(min(start + k / 2, count - 1))} * p.group;
      return k % 2 == 0 ? p.piece_weights + row + i / D : p.piece_sums + (row * D + i) / 2;
    });
    float bases[2][kAtOnce], totals[kAtOnce];
    float2 sums[kAtOnce];
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t n = start + k;
      const float base = __uint_as_float(words[2 * k].x);
      bases[0][k] = n < pieces.fresh ? base : -INFINITY;
      bases[1][k] = n < pieces.fresh || n >= count ? -INFINITY : base;
      totals[k] = __uint_as_float(words[2 * k].y);
      sums[k] = {__uint_as_float(words[2 * k + 1].x), __uint_as_float(words[2 * k + 1].y)};
    }
    fresh.add(bases[0], totals, sums);
    captured.add(bases[1], totals, sums);
  }
}

// Entries of a pair's heads; old: which one is reused, last: of the position before; lse, out_lse:
// [group] of what is captured and of everything.
__device__ inline void write_entry(const Params& p, const Lists& lists, uint32_t pair,
                                   const MacEntry& old, const MacEntry& last, bool finite,
                                   float lse, float out_lse) {
  const uint32_t head = threadIdx.x;
  const Match match = lists.matches[pair * p.group + head];
  const int32_t position = lists.row(p, pair).position;
  const bool reused = match.position >= 0;
  MacEntry entry;
  entry.position = finite ? position : -1;
  entry.anchor = reused ? old.anchor : position;
  entry.lse = reused && p.rules.anchored ? -INFINITY : lse;
  entry.share = expf(fminf(0.0f, lse - out_lse));
  entry.drift = reused ? old.drift + sqrtf(match.distance2) : 0.0f;
  entry.peak = peak_of(p.ring, entry.share, last, position);
  entry.depth = reused ? old.depth + 1 : 0;
  lists.entries(p, pair, position)[head] = entry;
  if (!reused) return;
  atomicAdd(&lists.counters(p, pair)->depth, static_cast<unsigned long long>(entry.depth));
  atomicAdd(&lists.counters(p, pair)->share, static_cast<double>(entry.share));
}

// Waits for the pieces. All threads of a block. lse: [group] of what is captured and of everything.
template <typename S>
__device__ void complete(const Params& p, const Lists& lists, const PairPieces& pieces,
                         uint32_t launch, uint32_t pair, float2* lse) {
  constexpr int D = S::kHeadDim;
  const uint32_t size = p.group * D;
  const Row& row = lists.row(p, pair);
  const bool stores = row.stores(p);
  const size_t own = stores ? lists.slot(p, pair, row.position) * p.group : 0;
  const auto entry_of = [&](uint32_t head) {  // that it reuses, if it does
    const int32_t position = lists.matches[pair * p.group + head].position;
    return position >= 0 ? lists.entries(p, pair, position) + head : nullptr;
  };
  MacEntry old = {}, last = {};
  if (threadIdx.x < p.group) {
    if (entry_of(threadIdx.x) != nullptr) old = *entry_of(threadIdx.x);
    if (stores) last = lists.entries(p, pair, row.position - 1)[threadIdx.x];
  }
  bool finite = true;
  for (uint32_t i = threadIdx.x * 2; i < size; i += blockDim.x * 2) {
    const uint32_t head = i / D;
    const size_t at = size_t{pair} * size + i;
    const float2 q = __ldcg(reinterpret_cast<const float2*>(p.q_plain + at));
    Merged fresh, captured;
    if (const MacEntry* entry = entry_of(head); entry != nullptr) {
      const size_t n = static_cast<size_t>(entry - p.ring.entries);
      captured.base = __ldcg(&entry->lse) * kLog2E;
      captured.total = 1.0f;
      captured.sum = load_result<S::kCoded>(p.ring, n * D + i % D);
    }
    merge_pieces<D>(p, pieces, launch, i, fresh, captured);
    const float scale = captured.total > 0.0f ? 1.0f / captured.total : 0.0f;
    const float2 stored = {scale * captured.sum.x, scale * captured.sum.y};
    const float captured_lse = natural_lse(captured);
    Merged all = fresh;
    all.add({captured.base}, {captured.total}, {captured.sum});
    decode::write_result<D>(p, pair, i, all);
    if (i % D == 0) lse[head] = {captured_lse, natural_lse(all)};
    if (!stores) continue;
    finite = finite && isfinite(q.x) && isfinite(q.y) && isfinite(stored.x) && isfinite(stored.y);
    store_result<S::kCoded>(p.ring, own * D + i, stored);
    store_query<S::kCoded>(p.ring, own * D + i, q);
  }
  finite = __syncthreads_and(finite ? 1 : 0) != 0;
  if (stores && threadIdx.x < p.group) {
    write_entry(p, lists, pair, old, last, finite, lse[threadIdx.x].x, lse[threadIdx.x].y);
  }
  if (stores && !finite && threadIdx.x == 0) atomicAdd(&lists.counters(p, pair)->nonfinite, 1ull);
}

}  // namespace mac

}  // namespace reprise::kernels::cuda

// The end of a step of MAC-Attention for one pair: merges what blocks computed with what is reused,
// and stores the pair's results in its ring.
#pragma once

#include "kernels/cuda/mac_lists.cuh"
#include "kernels/cuda/paged_decode_merge.cuh"
#include "kernels/cuda/row_math.cuh"

namespace reprise::kernels::cuda {

namespace mac {

using decode::kLn2, decode::Pieces;

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

// How pieces of a pair are summed, in shared memory. Fresh and captured ones are relative to tops
// of their own, so that neither vanishes beside the other.
struct Weights {
  struct Head {
    float fresh, captured;  // factors of the sums in the output
    float stored;           // of captured sums in what is stored
    float reused;           // of what the ring has, in the captured sum
    float stored_lse, lse;  // natural log
  };
  Head* heads;    // [group]
  float* pieces;  // [count, group]
  float* totals;  // [count, group]

  // For which so many floats per head are enough.
  static constexpr uint32_t most_pieces(uint32_t floats) {
    return (floats - sizeof(Head) / sizeof(float)) / 2;
  }
  __device__ Weights(void* memory, uint32_t count, uint32_t group) {
    heads = static_cast<Head*>(memory);
    pieces = reinterpret_cast<float*>(heads + group);
    totals = pieces + count * group;
  }
};

__device__ inline float warp_max(float x) {
  for (int mask = 1; mask < 32; mask *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}
__device__ inline float power(float base, float top) {
  return base == -INFINITY ? 0.0f : exp2_fast(base - top);
}
__device__ inline float natural_lse(float top, float total) {
  return total > 0.0f ? (top + log2f(total)) * kLn2 : -INFINITY;
}

// Fills the weights of a head, a warp; reused: lse of what the ring has, -inf: nothing.
__device__ inline void weigh(const Params& p, const PairPieces& pieces, uint32_t head, float reused,
                             const Weights& weights) {
  const uint32_t lane = threadIdx.x % 32, count = pieces.count(), fresh = pieces.fresh;
  const float ring = reused * kLog2E;
  float fresh_top = -INFINITY, captured_top = ring;
#pragma unroll 1
  for (uint32_t n = lane; n < count; n += 32) {
    const uint32_t at = pieces.row(n) * p.group + head;
    const float base = __ldcg(p.part_base + at), total = __ldcg(p.part_total + at);
    weights.pieces[n * p.group + head] = base;
    weights.totals[n * p.group + head] = total;
    (n < fresh ? fresh_top : captured_top) = fmaxf(n < fresh ? fresh_top : captured_top, base);
  }
  fresh_top = warp_max(fresh_top);
  captured_top = warp_max(captured_top);
  float fresh_total = 0.0f, captured_total = lane == 0 ? power(ring, captured_top) : 0.0f;
#pragma unroll 1
  for (uint32_t n = lane; n < count; n += 32) {
    float& weight = weights.pieces[n * p.group + head];
    weight = power(weight, n < fresh ? fresh_top : captured_top);
    (n < fresh ? fresh_total : captured_total) += weight * weights.totals[n * p.group + head];
  }
  fresh_total = warp_sum(fresh_total);
  captured_total = warp_sum(captured_total);
  if (lane != 0) return;
  const float top = fmaxf(fresh_top, captured_top);
  const float of_fresh = power(fresh_top, top), of_captured = power(captured_top, top);
  const float total = of_fresh * fresh_total + of_captured * captured_total;
  const float scale = total > 0.0f ? 1.0f / total : 0.0f;
  weights.heads[head] = {of_fresh * scale,
                         of_captured * scale,
                         captured_total > 0.0f ? 1.0f / captured_total : 0.0f,
                         power(ring, captured_top),
                         natural_lse(captured_top, captured_total),
                         natural_lse(top, total)};
}

// Sums of elements (i, i + 1) of [group, D] over the fresh and the captured pieces.
template <int D>
struct Sums {
  float2 fresh = {0.0f, 0.0f}, captured = {0.0f, 0.0f};

  __device__ void add(const Params& p, const PairPieces& pieces, const Weights& weights,
                      uint32_t i) {
    constexpr uint32_t kAtOnce = 8;  // loads in flight
    const uint32_t count = pieces.count(), size = p.group * D, head = i / D;
#pragma unroll 1  // the code is rarely in a cache
    for (uint32_t start = 0; start < count; start += kAtOnce) {
      float2 sums[kAtOnce];
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const uint32_t row = pieces.row(min(start + k, count - 1));
        sums[k] = __ldcg(reinterpret_cast<const float2*>(p.part_sums + (row * size + i)));
      }
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const uint32_t n = start + k;
        const float weight = n < count ? weights.pieces[n * p.group + head] : 0.0f;
        const float of_fresh = n < pieces.fresh ? weight : 0.0f, of_captured = weight - of_fresh;
        fresh.x += of_fresh * sums[k].x;
        fresh.y += of_fresh * sums[k].y;
        captured.x += of_captured * sums[k].x;
        captured.y += of_captured * sums[k].y;
      }
    }
  }
};

// Entries of a pair's heads; lse, out_lse: [group] of what is captured and of everything.
__device__ inline void write_entry(const Params& p, const Lists& lists, uint32_t pair,
                                   const MacEntry& old, bool finite, float lse, float out_lse) {
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
  entry.depth = reused ? old.depth + 1 : 0;
  lists.entries(p, pair, position)[head] = entry;
  if (!reused) return;
  atomicAdd(&lists.counters(p, pair)->depth, static_cast<unsigned long long>(entry.depth));
  atomicAdd(&lists.counters(p, pair)->share, static_cast<double>(entry.share));
}

// All pieces are there. All threads of the block that came last. scratch: for Weights.
template <int D>
__device__ void complete(const Params& p, const Lists& lists, const PairPieces& pieces,
                         uint32_t pair, void* scratch) {
  const uint32_t size = p.group * D, lane = threadIdx.x % 32;
  const Row& row = lists.row(p, pair);
  const bool stores = row.stores(p);
  const size_t own = stores ? lists.slot(p, pair, row.position) * p.group : 0;
  const auto entry_of = [&](uint32_t head) {  // that it reuses, if it does
    const int32_t position = lists.matches[pair * p.group + head].position;
    return position >= 0 ? lists.entries(p, pair, position) + head : nullptr;
  };
  const Weights weights(scratch, pieces.count(), p.group);
  for (uint32_t head = threadIdx.x / 32; head < p.group; head += blockDim.x / 32) {
    const MacEntry* entry = entry_of(head);
    weigh(p, pieces, head, entry != nullptr ? __ldcg(&entry->lse) : -INFINITY, weights);
    if (lane == 0) p.lse[size_t{pair} * p.group + head] = weights.heads[head].lse;
  }
  MacEntry old = {};
  if (threadIdx.x < p.group && entry_of(threadIdx.x) != nullptr) old = *entry_of(threadIdx.x);
  __syncthreads();
  bool finite = true;
  for (uint32_t i = threadIdx.x * 2; i < size; i += blockDim.x * 2) {
    const uint32_t head = i / D;
    const size_t at = size_t{pair} * size + i;
    const float2 q = __ldcg(reinterpret_cast<const float2*>(p.q_plain + at));
    float2 known = {0.0f, 0.0f};
    if (const MacEntry* entry = entry_of(head); entry != nullptr) {
      const size_t n = static_cast<size_t>(entry - p.ring.entries);
      known = __ldcg(reinterpret_cast<const float2*>(p.ring.out + n * D + i % D));
    }
    Sums<D> sums;
    sums.add(p, pieces, weights, i);
    const Weights::Head& w = weights.heads[head];
    sums.captured.x += w.reused * known.x;
    sums.captured.y += w.reused * known.y;
    *reinterpret_cast<float2*>(p.out + at) = {
        w.fresh * sums.fresh.x + w.captured * sums.captured.x,
        w.fresh * sums.fresh.y + w.captured * sums.captured.y};
    if (!stores) continue;
    const float2 stored = {w.stored * sums.captured.x, w.stored * sums.captured.y};
    finite = finite && isfinite(q.x) && isfinite(q.y) && isfinite(stored.x) && isfinite(stored.y);
    *reinterpret_cast<float2*>(p.ring.out + own * D + i) = stored;
    reinterpret_cast<__nv_bfloat162*>(p.ring.q)[(own * D + i) / 2] =
        __floats2bfloat162_rn(q.x, q.y);
  }
  finite = __syncthreads_and(finite ? 1 : 0) != 0;
  if (stores && threadIdx.x < p.group) {
    const Weights::Head& w = weights.heads[threadIdx.x];
    write_entry(p, lists, pair, old, finite, w.stored_lse, w.lse);
  }
  if (stores && !finite && threadIdx.x == 0) atomicAdd(&lists.counters(p, pair)->nonfinite, 1ull);
}

}  // namespace mac

}  // namespace reprise::kernels::cuda

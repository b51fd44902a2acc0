// The end of a step of MAC-Attention for one pair: merges what blocks computed with what is reused,
// and stores the pair's results in its ring.
#pragma once

#include "kernels/cuda/mac_lists.cuh"
#include "kernels/cuda/paged_decode_merge.cuh"

namespace reprise::kernels::cuda {

namespace mac {

using decode::kLn2, decode::Merged, decode::Pieces;

constexpr float kLog2E = 1.44269504f;

// Partial results of a pair.
struct PairPieces {
  Pieces fresh, near, far;

  __device__ uint32_t count() const { return fresh.count + near.count + far.count; }
  __device__ uint32_t row(uint32_t n) const {
    if (n < fresh.count) return fresh.row(n);
    n -= fresh.count;
    return n < near.count ? near.row(n) : far.row(n - near.count);
  }
};

struct Both {
  Merged fresh, captured;
};

// Pieces [start, start + N) of a pair, as far as there are any, of elements (i, i + 1) of [group,
// D].
template <int D, int N>
struct SomePieces {
  float fresh[N], captured[N], totals[N];
  float2 sums[N];

  __device__ void load(const Params& p, const PairPieces& pieces, uint32_t start, uint32_t i) {
    const uint32_t count = pieces.count();
#pragma unroll
    for (uint32_t k = 0; k < N; ++k) {
      const bool there = start + k < count, is_fresh = start + k < pieces.fresh.count;
      const size_t row = size_t{pieces.row(there ? start + k : start)} * p.group;
      const float base = there ? __ldcg(p.part_base + row + i / D) : -INFINITY;
      fresh[k] = is_fresh ? base : -INFINITY;
      captured[k] = is_fresh ? -INFINITY : base;
      totals[k] = __ldcg(p.part_total + row + i / D);
      sums[k] = __ldcg(reinterpret_cast<const float2*>(p.part_sums + row * D + i));
    }
  }
  __device__ void add(Both& both) const {
    both.fresh.add(fresh, totals, sums);
    both.captured.add(captured, totals, sums);
  }
};

__device__ inline float lse_of(const Merged& m) {
  return m.total > 0.0f ? (m.base + log2f(m.total)) * kLn2 : -INFINITY;
}
__device__ inline float2 normalized(const Merged& m) {
  const float scale = m.total > 0.0f ? 1.0f / m.total : 0.0f;
  return {m.sum.x * scale, m.sum.y * scale};
}

// Counts a pair's step, and judges whether comparing pays, once it is decided. One thread.
template <int D>
__device__ void count_step(const Params& p, const Lists& lists, uint32_t pair, float key_bytes) {
  if (!p.may_reuse(pair)) return;
  const Match* matches = lists.matches + pair * p.group;
  const Row& row = lists.row(p, pair);
  unsigned long long reused = 0, found = 0, lag = 0;
  int32_t begin = row.cut;
  double distance = 0.0;
  for (uint32_t head = 0; head < p.group; ++head) {
    const Match& match = matches[head];
    found += match.position != -1 ? 1 : 0;
    begin = min(begin, lists.begin(p, pair, head));
    if (match.position < 0) continue;
    ++reused;
    lag += static_cast<uint32_t>(row.position - match.position);
    distance += sqrtf(match.distance2);
  }
  const bool compared = p.compares(pair);
  const auto skipped = static_cast<uint32_t>(begin - row.sink);
  MacCounters* counters = p.counters(pair);
  atomicAdd(&counters->steps, 1ull);
  atomicAdd(&counters->keys, static_cast<unsigned long long>(row.position + 1));
  MacGuardState* guard = p.guard(pair);
  if (p.rules.guarded && guard->off != 0) ++guard->idle;
  if (!compared) return;
  atomicAdd(&counters->compared, 1ull);
  atomicAdd(&counters->head_hits, found);
  if (reused > 0) {
    atomicAdd(&counters->group_hits, skipped > 0 ? 1ull : 0ull);
    atomicAdd(&counters->reused_heads, reused);
    atomicAdd(&counters->skipped, static_cast<unsigned long long>(skipped));
    atomicAdd(&counters->lag, lag);
    atomicAdd(&counters->distance, distance);
  }
  if (!p.rules.guarded) return;
  const float spent =
      static_cast<float>(p.ring.window * p.group * D * 2 + reused * (D + 1) * 4) + p.pair_bytes;
  guard->saw(skipped * key_bytes, spent);
}

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
  p.ring.entries[p.ring_slot(pair, position) * p.group + head] = entry;
  if (!reused) return;
  atomicAdd(&p.counters(pair)->depth, static_cast<unsigned long long>(entry.depth));
  atomicAdd(&p.counters(pair)->share, static_cast<double>(entry.share));
}

// All pieces are there. All threads of the block that came last. scratch: [2][group].
template <int D>
__device__ void complete(const Params& p, const Lists& lists, const PairPieces& pieces,
                         uint32_t pair, float* scratch) {
  const uint32_t size = p.group * D;
  const Row& row = lists.row(p, pair);
  const bool stores = p.has_ring(pair) && row.position >= p.first_position() &&
                      row.position + static_cast<int32_t>(p.ring.window) >= p.rules.min_context;
  const size_t own = stores ? p.ring_slot(pair, row.position) * p.group : 0;
  MacEntry old = {};
  bool finite = true;
  if (threadIdx.x < p.group) {
    const int32_t position = lists.matches[pair * p.group + threadIdx.x].position;
    if (position >= 0) old = p.ring.entries[p.ring_slot(pair, position) * p.group + threadIdx.x];
  }
  for (uint32_t i = threadIdx.x * 2; i < size; i += blockDim.x * 2) {
    constexpr int kFew = 8, kMany = 16;  // few: of one row with a match, all
    SomePieces<D, kFew> few;
    few.load(p, pieces, 0, i);
    const size_t at = size_t{pair} * size + i;
    const float2 q = __ldcg(reinterpret_cast<const float2*>(p.q_plain + at));
    const uint32_t head = i / D;
    const int32_t position = lists.matches[pair * p.group + head].position;
    Both both;
    if (position >= 0) {
      const size_t entry = p.ring_slot(pair, position) * p.group + head;
      const float lse = __ldcg(&p.ring.entries[entry].lse);
      both.captured.sum = __ldcg(reinterpret_cast<const float2*>(p.ring.out + entry * D + i % D));
      both.captured.base = lse * kLog2E;
      both.captured.total = 1.0f;
    }
    few.add(both);
    for (uint32_t start = kFew; start < pieces.count(); start += kMany) {
      SomePieces<D, kMany> more;
      more.load(p, pieces, start, i);
      more.add(both);
    }
    const float2 stored = normalized(both.captured);
    const float stored_lse = lse_of(both.captured);
    const float bases[1] = {both.captured.base}, totals[1] = {both.captured.total};
    const float2 sums[1] = {both.captured.sum};
    both.fresh.add(bases, totals, sums);
    *reinterpret_cast<float2*>(p.out + at) = normalized(both.fresh);
    if (stores) {
      finite = finite && isfinite(q.x) && isfinite(q.y) && isfinite(stored.x) && isfinite(stored.y);
      *reinterpret_cast<float2*>(p.ring.out + own * D + i) = stored;
      reinterpret_cast<__nv_bfloat162*>(p.ring.q)[(own * D + i) / 2] =
          __floats2bfloat162_rn(q.x, q.y);
    }
    if (i % D != 0) continue;
    scratch[head] = stored_lse;
    scratch[p.group + head] = lse_of(both.fresh);
    p.lse[size_t{pair} * p.group + head] = scratch[p.group + head];
  }
  finite = __syncthreads_and(finite ? 1 : 0) != 0;
  if (stores && threadIdx.x < p.group) {
    write_entry(p, lists, pair, old, finite, scratch[threadIdx.x], scratch[p.group + threadIdx.x]);
  }
  if (stores && !finite && threadIdx.x == 0) atomicAdd(&p.counters(pair)->nonfinite, 1ull);
}

}  // namespace mac

}  // namespace reprise::kernels::cuda

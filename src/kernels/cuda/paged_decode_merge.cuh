// Merges of what the warps of a block, and the blocks of a pair, computed.
#pragma once

#include <cmath>

#include "kernels/cuda/paged_decode_params.cuh"

namespace reprise::kernels::cuda {

namespace decode {

constexpr float kLn2 = 0.69314718f;

// Where the partial results of a pair lie.
struct Pieces {
  uint32_t first, second, step, count;  // rows: first, second, second + step, ...

  __device__ uint32_t row(uint32_t n) const { return n == 0 ? first : second + (n - 1) * step; }
};

// A merge of partial results for two neighbouring dimensions.
struct Merged {
  float base = -INFINITY, total = 0.0f;
  float2 sum = {0.0f, 0.0f};

  template <int N>
  __device__ void add(const float (&bases)[N], const float (&totals)[N], const float2 (&sums)[N]) {
    float top = base;
    for (float x : bases) top = fmaxf(top, x);
    if (top == -INFINITY) return;
    const float own = exp2_fast(base - top);
    base = top;
    total *= own;
    sum.x *= own;
    sum.y *= own;
    for (int n = 0; n < N; ++n) {
      const float factor = exp2_fast(bases[n] - top);
      total += factor * totals[n];
      sum.x += factor * sums[n].x;
      sum.y += factor * sums[n].y;
    }
  }
};

// What the warps published, of elements (i, i + 1) of [group, head_dim].
template <typename S>
__device__ Merged merge_warps(const Params& p, Shared<S>& shared, uint32_t i) {
  float bases[S::kWarps], totals[S::kWarps];
  float2 sums[S::kWarps];
#pragma unroll
  for (uint32_t n = 0; n < S::kWarps; ++n) {
    bases[n] = shared.base[n][i / S::kHeadDim];
    totals[n] = shared.total[n][i / S::kHeadDim];
    sums[n] = *reinterpret_cast<const float2*>(shared.sums() + n * p.group * S::kHeadDim + i);
  }
  Merged merged;
  merged.add(bases, totals, sums);
  return merged;
}

template <typename S>
__device__ Merged merge_pieces(const Params& p, const Pieces& pieces, uint32_t i) {
  constexpr uint32_t kAtOnce = 16;  // loads in flight
  Merged merged;
  for (uint32_t start = 0; start < pieces.count; start += kAtOnce) {
    float bases[kAtOnce], totals[kAtOnce];
    float2 sums[kAtOnce];
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const bool there = start + k < pieces.count;
      const size_t row = size_t{pieces.row(start + k)} * p.group;
      const size_t head = row + i / S::kHeadDim;
      bases[k] = there ? __ldcg(p.part_base + head) : -INFINITY;
      totals[k] = there ? __ldcg(p.part_total + head) : 0.0f;
      sums[k] = there ? __ldcg(reinterpret_cast<const float2*>(p.part_sums + row * S::kHeadDim + i))
                      : float2{};
    }
    merged.add(bases, totals, sums);
  }
  return merged;
}

template <int D>
__device__ inline void write_result(const Params& p, uint32_t pair, uint32_t i, const Merged& m) {
  const float scale = m.total > 0.0f ? 1.0f / m.total : 0.0f;
  float* out = p.out + size_t{pair} * p.group * D + i;
  *reinterpret_cast<float2*>(out) = {m.sum.x * scale, m.sum.y * scale};
  if (i % D != 0) return;
  p.lse[size_t{pair} * p.group + i / D] =
      m.total > 0.0f ? (m.base + log2f(m.total)) * kLn2 : -INFINITY;
}

template <int D>
__device__ inline void write_piece(const Params& p, uint32_t row, uint32_t i, const Merged& m) {
  *reinterpret_cast<float2*>(p.part_sums + size_t{row} * p.group * D + i) = m.sum;
  if (i % D != 0) return;
  p.part_base[size_t{row} * p.group + i / D] = m.base;
  p.part_total[size_t{row} * p.group + i / D] = m.total;
}

// Adds one; what the block wrote before is visible to whoever sees the sum, and the other way
// round.
__device__ inline uint32_t arrive(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// Ends a pair once the warps have published; mine: the row of this block's piece. Whether no block
// ended it before. All threads.
template <typename S>
__device__ bool finish_pair(const Params& p, Shared<S>& shared, uint32_t pair, uint32_t mine,
                            const Pieces& pieces) {
  constexpr uint32_t D = S::kHeadDim;
  const uint32_t size = p.group * D;
  __syncthreads();
  for (uint32_t i = threadIdx.x * 2; i < size; i += S::kThreads * 2) {
    const Merged merged = merge_warps<S>(p, shared, i);
    if (pieces.count == 1) {
      write_result<D>(p, pair, i, merged);
    } else {
      write_piece<D>(p, mine, i, merged);
    }
  }
  __syncthreads();
  if (pieces.count == 1) return true;
  if (threadIdx.x == 0) {
    shared.arrived = arrive(&p.arrivals[pair]);
    if (shared.arrived == pieces.count - 1) p.arrivals[pair] = 0;
  }
  __syncthreads();
  const uint32_t arrived = shared.arrived;
  if (arrived == 0) return true;
  for (uint32_t i = threadIdx.x * 2; arrived == pieces.count - 1 && i < size;
       i += S::kThreads * 2) {
    write_result<D>(p, pair, i, merge_pieces<S>(p, pieces, i));
  }
  return false;
}

}  // namespace decode

}  // namespace reprise::kernels::cuda

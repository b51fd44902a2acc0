// Puts together what blocks made of parts of the keys of prefill rows.
#pragma once

#include "kernels/cuda/prefill_tiles.cuh"

namespace reprise::kernels::cuda::prefill {

inline constexpr uint32_t kMergeWarps = 4;

// A warp per head of a row. p: out and lse; parted: those of the parts.
template <int D>
__global__ __launch_bounds__(kMergeWarps *
                             32) void merge_kernel(const __grid_constant__ Params p,
                                                   const __grid_constant__ Params parted) {
  const uint32_t unit = blockIdx.x * kMergeWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t row = parted.first_row + unit / p.n_head;
  bool exists = false;
  for (uint32_t i = 0; i < p.batch && !exists; ++i) {
    const PrefillRows rows = p.sequences[i];
    exists = row - rows.first < rows.count;
  }
  if (!exists) return;
  float top = -INFINITY, total = 0.0f, sums[D / 32] = {};
  for (uint32_t part = 0; part < parted.parts; ++part) {
    top = fmaxf(top, parted.lse[part * parted.part_rows + unit]);
  }
  for (uint32_t part = 0; part < parted.parts; ++part) {
    const size_t at = part * parted.part_rows + unit;
    const float weight = expf(parted.lse[at] - top);
    if (weight == 0.0f) continue;  // an empty part has no out
    total += weight;
    const float* from = static_cast<const float*>(parted.out) + at * D + lane;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) sums[i] += weight * from[i * 32];
  }
  const size_t own = size_t{row} * p.n_head + unit % p.n_head, to = own * D + lane;
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const float value = sums[i] / total;
    if (p.f32_out) {
      static_cast<float*>(p.out)[to + i * 32] = value;
    } else {
      static_cast<__nv_bfloat16*>(p.out)[to + i * 32] = __float2bfloat16(value);
    }
  }
  if (lane == 0) p.lse[own] = top + logf(total);
}

template <int D>
cudaError_t merge_parts(const Params& p, const Params& parted, uint32_t rows, cudaStream_t stream) {
  const uint32_t blocks = (rows * p.n_head + kMergeWarps - 1) / kMergeWarps;
  merge_kernel<D><<<blocks, kMergeWarps * 32, 0, stream>>>(p, parted);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda::prefill

// Brings x into shared memory, normalised (but for the factor of its row) or activated.
#pragma once

#include "kernels/cuda/matvec_params.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

// What a lane of a warp takes at a time is four columns of a row: a strip is 128 columns.
constexpr uint32_t kStripColumns = 128;

template <bool aligned>
__device__ float4 load_four(const float* row, uint32_t column, uint32_t end) {
  if constexpr (aligned) {
    if (column >= end) return {};
    return *reinterpret_cast<const float4*>(row + column);
  } else {
    float4 v = {};
    if (column < end) v.x = row[column];
    if (column + 1 < end) v.y = row[column + 1];
    if (column + 2 < end) v.z = row[column + 2];
    if (column + 3 < end) v.w = row[column + 3];
    return v;
  }
}

// As gated_activation_ref.
__device__ inline float activate(float x, Activation activation) {
  if (activation == Activation::kSilu) return x / (1.0f + expf(-x));
  constexpr float kRoot = 0.797884561f;  // sqrt(2 / pi)
  return 0.5f * x * (1.0f + tanhf(kRoot * (x + 0.044715f * x * x * x)));
}

__device__ inline float4 transform(const Params& p, float4 x, float4 second) {
  if (p.gated) {
    x = {activate(x.x, p.activation), activate(x.y, p.activation), activate(x.z, p.activation),
         activate(x.w, p.activation)};
  }
  if (p.gated || p.norm) {
    x = {x.x * second.x, x.y * second.y, x.z * second.z, x.w * second.w};
  }
  return x;
}

// Four columns of x, column from the start of the slice; all lanes call.
__device__ inline void store_four(const Part& part, unsigned char* memory, uint32_t row,
                                  uint32_t column, float4 v) {
  const bool inside = column < part.columns;
  unsigned char* to = memory + part.input_at + row * part.input_stride;
  if (part.layout == InputLayout::kFloat) {
    if (inside) *reinterpret_cast<float4*>(to + column * sizeof(float)) = v;
    return;
  }
  const uint2 high = {pack<__nv_bfloat16>(v.x, v.y), pack<__nv_bfloat16>(v.z, v.w)};
  const float4 rounded = {low_float(high.x), high_float(high.x), low_float(high.y),
                          high_float(high.y)};
  const uint2 low = {pack<__nv_bfloat16>(v.x - rounded.x, v.y - rounded.y),
                     pack<__nv_bfloat16>(v.z - rounded.z, v.w - rounded.w)};
  const uint32_t four = column % 32 / 4;
  const uint32_t place = part.layout == InputLayout::kSlots ? four % 4 * 2 + four / 4 : four;
  if (inside) {
    to += column / 32 * 128 + place * 8;
    *reinterpret_cast<uint2*>(to) = high;
    *reinterpret_cast<uint2*>(to + 64) = low;
  }
  if (part.sum_columns == 0) return;
  const float4 kept = {rounded.x + low_float(low.x), rounded.y + high_float(low.x),
                       rounded.z + low_float(low.y), rounded.w + high_float(low.y)};
  float sum = (kept.x + kept.y) + (kept.z + kept.w);
  for (uint32_t mask = 1; mask < part.sum_columns / 4; mask *= 2) {
    sum += __shfl_xor_sync(~0u, sum, mask);
  }
  if (inside && column % part.sum_columns == 0) {
    float* sums = reinterpret_cast<float*>(memory + part.sums_at);
    sums[column / part.sum_columns * kMatvecBatch + row] = sum * part.sum_factor;
  }
}

__device__ inline void add_squares(Shared& shared, uint32_t row, float4 v) {
  float sum = (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
  for (uint32_t mask = 1; mask < 32; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  if (threadIdx.x % 32 == 0) shared.squares[threadIdx.x / 32][row] += sum;
}

// A warp takes the same strips of every row, so that a row's sums do not depend on the others.
template <bool aligned>
__device__ void stage_strips(const Params& p, const Part& part, uint32_t first_column,
                             Shared& shared, unsigned char* memory) {
  constexpr uint32_t kLoadsAhead = aligned ? 4 : 1;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t strips = (part.columns + kStripColumns - 1) / kStripColumns;
  const uint32_t end = min(p.cols, first_column + part.columns);
  uint32_t strip = warp, row = 0;
  while (strip < strips) {
    float4 x[kLoadsAhead] = {}, second[kLoadsAhead] = {};
    uint32_t columns[kLoadsAhead], rows[kLoadsAhead];
#pragma unroll
    for (uint32_t i = 0; i < kLoadsAhead; ++i) {
      columns[i] = strip * kStripColumns + lane * 4;
      rows[i] = strip < strips ? row : kMatvecBatch;
      if (strip >= strips) continue;
      const uint32_t column = first_column + columns[i];
      x[i] = load_four<aligned>(p.x + row * p.stride, column, end);
      if (p.second != nullptr) {
        second[i] = load_four<aligned>(p.second + row * p.second_stride, column, end);
      }
      if (++row == p.batch) {
        row = 0;
        strip += p.warps;
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kLoadsAhead; ++i) {
      if (rows[i] == kMatvecBatch) break;
      if (p.norm) add_squares(shared, rows[i], x[i]);
      store_four(part, memory, rows[i], columns[i], transform(p, x[i], second[i]));
    }
  }
}

// Columns from first_column on.
__device__ inline void stage_input(const Params& p, const Part& part, uint32_t first_column,
                                   Shared& shared, unsigned char* memory) {
  if (threadIdx.x % 32 < kMatvecBatch) shared.squares[threadIdx.x / 32][threadIdx.x % 32] = 0.0f;
  __syncwarp();
  if (p.aligned) {
    stage_strips<true>(p, part, first_column, shared, memory);
  } else {
    stage_strips<false>(p, part, first_column, shared, memory);
  }
  __syncthreads();
  if (threadIdx.x < kMatvecBatch) {
    float total = 0.0f;
    for (uint32_t warp = 0; warp < p.warps; ++warp) total += shared.squares[warp][threadIdx.x];
    shared.totals[threadIdx.x] = total;
  }
}

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda

// Brings x into shared memory, normalised (but for the factor of its row) or activated.
#pragma once

#include "kernels/cuda/matvec_params.cuh"
#include "kernels/cuda/row_math.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

// What a lane of a warp takes at a time is four columns of a row: a strip is 128 columns.
constexpr uint32_t kStripColumns = 128;

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
                                  uint32_t column, bool inside, float4 v) {
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
  if (part.layout == InputLayout::kPairs) {
    to += column / 32 * 128 + column % 8 * 16 + column % 32 / 8 * 16;
    if (inside) *reinterpret_cast<uint4*>(to) = {high.x, low.x, high.y, low.y};
    return;
  }
  if (inside) {
    const uint32_t four = column % 32 / 4;
    to += column / 32 * 128 + four % 4 * 16 + four / 4 * 8;
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

// The warp's share of the columns, those of the row from first_column to end_column, to to_column
// of the slice and on. Takes strips of a row or rows of a strip side by side, whichever are more.
template <bool aligned>
__device__ void stage_share(const Params& p, const Part& part, uint32_t first_column,
                            uint32_t end_column, uint32_t to_column, Shared& shared,
                            unsigned char* memory) {
  constexpr uint32_t kLoadsAhead = aligned ? 4 : 1;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t strips = (part.share_columns + kStripColumns - 1) / kStripColumns;
  const bool down = p.batch > strips;
  const uint32_t inner = down ? p.batch : strips, outer = down ? strips : p.batch;
  float row_squares = 0.0f;  // of the lane-th row
  for (uint32_t j = 0; j < outer; ++j) {
    for (uint32_t first = 0; first < inner; first += kLoadsAhead) {
      float4 x[kLoadsAhead] = {}, second[kLoadsAhead] = {};
#pragma unroll
      for (uint32_t i = 0; i < kLoadsAhead; ++i) {
        const uint32_t row = down ? first + i : j, strip = down ? j : first + i;
        if (first + i >= inner) break;
        const uint32_t column = first_column + strip * kStripColumns + lane * 4;
        x[i] = load_four<aligned>(p.x + row * p.stride, column, end_column);
        if (p.second != nullptr) {
          second[i] = load_four<aligned>(p.second + row * p.second_stride, column, end_column);
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < kLoadsAhead; ++i) {
        const uint32_t row = down ? first + i : j, strip = down ? j : first + i;
        if (first + i >= inner) break;
        const uint32_t column = strip * kStripColumns + lane * 4;
        store_four(part, memory, row, to_column + column, column < part.share_columns,
                   transform(p, x[i], second[i]));
        if (p.norm) {
          const float4 v = x[i];
          const float sum = warp_sum((v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w));
          if (lane == row) row_squares += sum;
        }
      }
    }
  }
  if (p.norm && lane < p.batch) shared.squares[threadIdx.x / 32][lane] = row_squares;
}

// What this warp multiplies with its reads.
template <class F>
__device__ void stage_input(const Params& p, const Part& part, const Place& place, Shared& shared,
                            unsigned char* memory) {
  if (place.begin == place.end) return;
  const uint32_t first = place.begin * F::kReadColumns;
  const uint32_t end = min(place.end * F::kReadColumns, p.cols);
  const uint32_t to = (place.begin - place.first) * F::kReadColumns;
  if (p.aligned) {
    stage_share<true>(p, part, first, end, to, shared, memory);
  } else {
    stage_share<false>(p, part, first, end, to, shared, memory);
  }
  __syncwarp();
}

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda

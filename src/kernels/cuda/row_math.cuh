// Rows of a matrix, four columns at a time, and what is computed of them.
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/ops.h"

namespace reprise::kernels::cuda {

/// Columns from column on; zeros from end on. aligned: end and the rows' starts are multiples of 4.
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

template <bool aligned>
__device__ float4 load_four(const __nv_bfloat16* row, uint32_t column, uint32_t end) {
  float4 v = {};
  if constexpr (aligned) {
    if (column >= end) return v;
    const uint2 bits = *reinterpret_cast<const uint2*>(row + column);
    v = {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
         __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u)};
  } else {
    if (column < end) v.x = __bfloat162float(row[column]);
    if (column + 1 < end) v.y = __bfloat162float(row[column + 1]);
    if (column + 2 < end) v.z = __bfloat162float(row[column + 2]);
    if (column + 3 < end) v.w = __bfloat162float(row[column + 3]);
  }
  return v;
}

__device__ inline void store_whole(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }
__device__ inline void store_whole(__nv_bfloat16* to, float4 v) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(pack<__nv_bfloat16>(v.x, v.y), pack<__nv_bfloat16>(v.z, v.w));
}
__device__ inline void store_one(float* to, float v) { *to = v; }
__device__ inline void store_one(__nv_bfloat16* to, float v) { *to = __float2bfloat16_rn(v); }

/// Those of four columns that lie before end.
template <bool aligned, typename T>
__device__ void store_four(T* row, uint32_t column, uint32_t end, float4 v) {
  if constexpr (aligned) {
    if (column < end) store_whole(row + column, v);
  } else {
    if (column < end) store_one(row + column, v.x);
    if (column + 1 < end) store_one(row + column + 1, v.y);
    if (column + 2 < end) store_one(row + column + 2, v.z);
    if (column + 3 < end) store_one(row + column + 3, v.w);
  }
}

// As gated_activation_ref, within 2^-20 of x: both activations are x sigmoid(z).
__device__ inline float activate(float x, Activation activation) {
  constexpr float kTwoRoots = 2 * 0.797884561f;  // of 2 / pi
  const float z = activation == Activation::kSilu ? x : kTwoRoots * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.0f + __expf(-z));
}

__device__ inline float warp_sum(float v) {
  for (int mask = 1; mask < 32; mask *= 2) v += __shfl_xor_sync(~0u, v, mask);
  return v;
}

/// Of all threads of a block of whole warps; once per kernel.
__device__ inline float block_sum(float v) {
  __shared__ float sums[32];
  const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
  v = warp_sum(v);
  if (lane == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  return warp_sum(lane < warps ? sums[lane] : 0.0f);
}

}  // namespace reprise::kernels::cuda

// Writes keys and values into pages.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/kv_tile.h"

namespace reprise::kernels::cuda {

// The scale of a token of which a lane holds these values. All lanes of a warp call.
template <int N>
__device__ float fp8_scale(const float2 (&pairs)[N]) {
  float largest = 0.0f;
  for (const float2& two : pairs) {
    largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
  }
  for (int mask = 1; mask < 32; mask *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
  }
  return largest / kLargestE4M3;
}

/// What is not finite becomes something that is, as on a CPU: values are read times zero by what
/// follows their page in its place. Keys stay what they are, because those products are left out.
template <int N>
__device__ void make_finite(float2 (&values)[N]) {
  constexpr float kMostBf16 = 0x1.fep127f;
  const auto finite = [](float x) {
    return isnan(x) ? 0.0f : fminf(fmaxf(x, -kMostBf16), kMostBf16);
  };
#pragma unroll
  for (float2& two : values) two = {finite(two.x), finite(two.y)};
}

/// Stores a token of one KV head in its K or V tile. All lanes of a warp call: lane l holds
/// dimensions 64 i + 2 l and 64 i + 2 l + 1 in pairs[i]; pairs past head_dim <= 64 N are zero.
template <int N>
__device__ void store_token(KvType type, uint32_t head_dim, uint32_t token,
                            const float2 (&pairs)[N], unsigned char* tile) {
  const uint32_t lane = threadIdx.x % 32;
  const float scale = type == KvType::kFP8 ? fp8_scale(pairs) : 1.0f;
#pragma unroll
  for (uint32_t i = 0; i < N; ++i) {
    const uint32_t dim = 64 * i + 2 * lane;
    if (dim >= head_dim) break;
    const float2 two = pairs[i];
    unsigned char* to = tile + element_offset(type, head_dim, token, dim);
    if (type == KvType::kBF16) {
      *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(two.x, two.y);
    } else if (type == KvType::kF16) {
      const auto finite = [](float x) { return fabsf(x) > 65504.0f ? copysignf(65504.0f, x) : x; };
      *reinterpret_cast<__half2*>(to) = __floats2half2_rn(finite(two.x), finite(two.y));
    } else if (type == KvType::kF32) {
      *reinterpret_cast<float2*>(to) = two;
    } else {
      const float2 codes = scale == 0.0f ? float2{} : float2{two.x / scale, two.y / scale};
      *reinterpret_cast<__nv_fp8x2_storage_t*>(to) =
          __nv_cvt_float2_to_fp8x2(codes, __NV_SATFINITE, __NV_E4M3);
    }
  }
  if (type == KvType::kFP8 && lane == 0) {
    *reinterpret_cast<float*>(tile + fp8_scale_offset(head_dim, token)) = scale;
  }
}

}  // namespace reprise::kernels::cuda

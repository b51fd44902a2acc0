// Reads keys and values out of pages.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

/// Dimensions dim and dim + 1 of a token of a K or V tile.
__device__ inline float2 load_two(KvType type, const unsigned char* tile, uint32_t head_dim,
                                  uint32_t token, uint32_t dim) {
  const unsigned char* from = tile + element_offset(type, head_dim, token, dim);
  if (type == KvType::kBF16) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
  }
  if (type == KvType::kF16) return __half22float2(*reinterpret_cast<const __half2*>(from));
  if (type == KvType::kF32) return *reinterpret_cast<const float2*>(from);
  const auto codes = *reinterpret_cast<const __nv_fp8x2_storage_t*>(from);
  const float2 two = __half22float2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
  const float scale = *reinterpret_cast<const float*>(tile + fp8_scale_offset(head_dim, token));
  return {two.x * scale, two.y * scale};
}

/// The K tile of a KV head's page.
__device__ inline const unsigned char* key_tile(const PagedKv& kv, uint32_t page,
                                                uint32_t kv_head) {
  const size_t tile = (size_t{page} * kv.n_kv_head + kv_head) * 2;
  return static_cast<const unsigned char*>(kv.pages) + tile * tile_bytes(kv.type, kv.head_dim);
}

}  // namespace reprise::kernels::cuda

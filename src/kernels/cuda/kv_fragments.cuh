// Keys and values of a page as operands of tensor core products.
#pragma once

#include <type_traits>

#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/mma.cuh"

namespace reprise::kernels::cuda {

// What products of a type of pages are computed in. All e4m3 codes are f16 values.
template <KvType type>
using Operand = std::conditional_t<type == KvType::kBF16, __nv_bfloat16, __half>;

// Two e4m3 codes, of the low or high half of a word, as f16.
template <bool high>
__device__ uint32_t widen_e4m3(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t two;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
      : "=r"(two)
      : "h"(static_cast<uint16_t>(high ? codes >> 16 : codes)));
  return two;
#else
  // Sign, exponent and mantissa at their places in f16 are 2^-8 of the value.
  const uint32_t bytes = __byte_perm(codes, 0, high ? 0x3424 : 0x1404);
  const uint32_t bits = (bytes & 0x80008000u) | (bytes >> 1 & 0x3f803f80u);
  const __half2 value = __hmul2(reinterpret_cast<const __half2&>(bits), __float2half2_rn(256.0f));
  return reinterpret_cast<const uint32_t&>(value);
#endif
}

// Weights of values that have scales are in units of kHeadroom times the largest scale so far: they
// stay below 2^16 as weights relative to a base are at most 2^8. The first unit has an inverse.
inline constexpr float kHeadroom = 0x1p-7f, kLeastUnit = 0x1p-100f;

// Which dimensions of a step's 16 stand where in its operands. In 16-bit tiles they stand in order;
// of e4m3 codes, a lane has four neighbours of a row or two of a column.
template <KvType type>
struct FragmentOrder {
  static constexpr bool kFp8 = type == KvType::kFP8;

  // The dimensions summed over that quad lane t (0 to 3) has in half a step: this and the next.
  __device__ static uint32_t summed(uint32_t t, uint32_t half) {
    return kFp8 ? 4 * t + 2 * half : 2 * t + 8 * half;
  }
  // The dimension of row r (0 to 7) of half a step of rows.
  __device__ static uint32_t row(uint32_t r, uint32_t half) {
    return kFp8 ? 2 * r + half : r + 8 * half;
  }
};

// Left operands of two steps: 16 tokens as rows, 32 dimensions from 32 * pair on.
template <KvType type, uint32_t D>
__device__ void load_keys(uint32_t tile, uint32_t pair, uint32_t (&keys)[2][4]) {
  const uint32_t token = threadIdx.x % 16, chunk = threadIdx.x % 32 / 16;
  if constexpr (type == KvType::kFP8) {
    uint32_t codes[4];
    load_matrices(codes, tile + fp8_tile_offset(D, token, 2 * pair + chunk));
    for (int step = 0; step < 2; ++step) {
      for (int half = 0; half < 2; ++half) {
        keys[step][half] = widen_e4m3<false>(codes[2 * step + half]);
        keys[step][half + 2] = widen_e4m3<true>(codes[2 * step + half]);
      }
    }
  } else {
    for (uint32_t step = 0; step < 2; ++step) {
      load_matrices(keys[step], tile + tile_offset(D, token, 4 * pair + 2 * step + chunk));
    }
  }
}

// Left operands of two steps: 32 dimensions from 32 * pair on as rows, 16 tokens.
template <KvType type, uint32_t D>
__device__ void load_values(uint32_t tile, uint32_t pair, uint32_t (&values)[2][4]) {
  const uint32_t lane = threadIdx.x % 32;
  if constexpr (type == KvType::kFP8) {
    uint32_t codes[4];
    load_transposed(codes, tile + fp8_tile_offset(D, lane % 16, 2 * pair + lane / 16));
    for (int step = 0; step < 2; ++step) {
      for (int half = 0; half < 2; ++half) {  // of the tokens
        const uint32_t by_dim = __byte_perm(codes[2 * step + half], 0, 0x3120);
        values[step][2 * half] = widen_e4m3<false>(by_dim);
        values[step][2 * half + 1] = widen_e4m3<true>(by_dim);
      }
    }
  } else {
    const uint32_t token = lane % 8 + lane / 16 * 8, chunk = lane / 8 % 2;
    for (uint32_t step = 0; step < 2; ++step) {
      load_transposed(values[step], tile + tile_offset(D, token, 4 * pair + 2 * step + chunk));
    }
  }
}

// The scale of a token's values in a tile in shared memory; 1 where pages have none.
template <KvType type, uint32_t D>
__device__ float token_scale(const unsigned char* tile, uint32_t token) {
  if constexpr (type != KvType::kFP8) return 1.0f;
  return *reinterpret_cast<const float*>(tile + fp8_scale_offset(D, token));
}

}  // namespace reprise::kernels::cuda

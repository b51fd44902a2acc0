// How rings of MAC-Attention keep queries and results: in bf16 and in float, or both as q8_0, codes
// of 8 bits with a scale for every 32 dimensions, the same numbers that the CPU keeps.
#pragma once

#include "kernels/cuda/mac.h"
#include "kernels/cuda/mma.cuh"

namespace reprise::kernels::cuda {

namespace mac {

constexpr uint32_t kScaled = 32;  // dimensions that share a scale

template <int D, bool coded>
inline constexpr size_t kQueryBytes = coded ? D + D / kScaled * sizeof(float) : D * 2;

__device__ inline float2 widen(uint32_t two) {
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
}

// Codes in the bytes 2 i and 2 i + 1 of a word. By their place in a float's fraction: conversions
// have a quarter of the throughput of sums or less.
template <int i>
__device__ inline float2 widen_codes(uint32_t four) {
  constexpr uint32_t kBase = 0x4b000000;  // 2^23, whose last bit is worth 1
  constexpr float kOffset = 0x1p23f + 128.0f;
  const uint32_t above = four ^ 0x80808080u;
  return {__uint_as_float(__byte_perm(above, kBase, 0x7650 | (2 * i))) - kOffset,
          __uint_as_float(__byte_perm(above, kBase, 0x7650 | (2 * i + 1))) - kOffset};
}

// The stored query of an entry, which the four lanes of a quad hold: chunks of 8 dimensions, lane
// % 4 and every fourth one.
template <int D, bool coded>
struct StoredQuery {
  uint4 pairs[D / 32];

  __device__ void load(const MacRings& ring, size_t entry) {
    const auto* row = static_cast<const uint4*>(ring.q) + entry * (D / 8) + threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) pairs[i] = __ldcs(row + 4 * i);
  }
  // Of the lane's i-th chunk. All lanes of a quad.
  __device__ void values(int i, float2 (&values)[4]) const {
    values[0] = widen(pairs[i].x);
    values[1] = widen(pairs[i].y);
    values[2] = widen(pairs[i].z);
    values[3] = widen(pairs[i].w);
  }
};

template <int D>
struct StoredQuery<D, true> {
  static constexpr int kScales = D / kScaled;  // of the i-th chunks of all lanes
  uint2 codes[D / 32];
  float scales[(kScales + 3) / 4];  // lane % 4 and every fourth one

  __device__ void load(const MacRings& ring, size_t entry) {
    const uint32_t lane = threadIdx.x % 4;
    const auto* row = static_cast<const uint2*>(ring.q) + entry * (D / 8) + lane;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) codes[i] = __ldcs(row + 4 * i);
#pragma unroll
    for (int i = 0; i < kScales; i += 4) {
      if (i + lane < kScales) scales[i / 4] = __ldcg(ring.q_scales + entry * kScales + i + lane);
    }
  }
  __device__ void values(int i, float2 (&values)[4]) const {
    const float scale = __shfl_sync(~0u, scales[i / 4], i % 4, 4);
    values[0] = widen_codes<0>(codes[i].x);
    values[1] = widen_codes<1>(codes[i].x);
    values[2] = widen_codes<0>(codes[i].y);
    values[3] = widen_codes<1>(codes[i].y);
#pragma unroll
    for (float2& two : values) two = {scale * two.x, scale * two.y};
  }
};

// Elements (at, at + 1) of codes; 16 lanes hold what shares a scale, and all of them call.
__device__ inline void store_codes(void* codes, float* scales, size_t at, float2 two) {
  const uint32_t lanes = 0xffffu << (threadIdx.x & 16);
  float largest = fmaxf(fabsf(two.x), fabsf(two.y));
  for (int mask = 1; mask < 16; mask *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, mask));
  }
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  static_cast<char2*>(codes)[at / 2] = {static_cast<signed char>(__float2int_rn(two.x * inverse)),
                                        static_cast<signed char>(__float2int_rn(two.y * inverse))};
  if (at % kScaled == 0) scales[at / kScaled] = largest / 127.0f;
}

// Elements (at, at + 1) of a ring's queries; lanes as for codes.
template <bool coded>
__device__ inline void store_query(const MacRings& ring, size_t at, float2 q) {
  if constexpr (coded) {
    store_codes(ring.q, ring.q_scales, at, q);
  } else {
    static_cast<__nv_bfloat162*>(ring.q)[at / 2] = __floats2bfloat162_rn(q.x, q.y);
  }
}

template <bool coded>
__device__ inline void store_result(const MacRings& ring, size_t at, float2 out) {
  if constexpr (coded) {
    store_codes(ring.out, ring.out_scales, at, out);
  } else {
    static_cast<float2*>(ring.out)[at / 2] = out;
  }
}

// Of an entry with a share, by that of its head's last position.
__device__ inline float peak_of(const MacRings& ring, float share, const MacEntry& last,
                                int32_t position) {
  const float fade = 1.0f - 1.0f / static_cast<float>(ring.window);
  return last.position == position - 1 ? fmaxf(share, fade * last.peak) : share;
}

template <bool coded>
__device__ inline float2 load_result(const MacRings& ring, size_t at) {
  if constexpr (coded) {
    const char2 codes = __ldcg(static_cast<const char2*>(ring.out) + at / 2);
    const float scale = __ldcg(ring.out_scales + at / kScaled);
    return {scale * static_cast<float>(codes.x), scale * static_cast<float>(codes.y)};
  } else {
    return __ldcg(static_cast<const float2*>(ring.out) + at / 2);
  }
}

}  // namespace mac

}  // namespace reprise::kernels::cuda

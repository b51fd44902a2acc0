// Pages of e4m3 codes in prefill: codes become f16 values in shared memory, and what they are to be
// multiplied by scales logits and weights.
#pragma once

#include "kernels/cuda/kv_fragments.cuh"
#include "kernels/cuda/prefill_tiles.cuh"

namespace reprise::kernels::cuda::prefill {

__device__ inline uint4 widen_codes(uint32_t low, uint32_t high) {
  return {widen_e4m3<false>(low), widen_e4m3<true>(low), widen_e4m3<false>(high),
          widen_e4m3<true>(high)};
}

// Places of sixteen codes of a token and of their values, in tiles laid out by kv_tile.h. A warp
// takes kSteps times 32 of them; no eight lanes of a row share a bank in either tile.
template <uint32_t D>
struct CodeChunks {
  static constexpr uint32_t kSteps = D / 32;

  __device__ explicit CodeChunks(uint32_t lane) {
    // Four neighbours of two tokens; addresses of a step are then constants from the first one's.
    token = lane / 8 * 2 ^ lane / 4 % 2 * 5;
    chunk = lane % 4;
    code = fp8_tile_offset(D, token, chunk);
    value = tile_offset(D, token, 2 * chunk);
  }
  __device__ uint32_t codes(uint32_t step) const {
    return (code ^ step / 2 * 64) + step % 2 * 8 * D;
  }
  // half: of the sixteen.
  __device__ uint32_t values(uint32_t step, uint32_t half) const {
    return (value ^ half * 16) + (step % 2 * (D / 64) + step / 2) * 1024;
  }

  uint32_t token, chunk, code, value;
};

template <>
struct CodeChunks<96> {
  static constexpr uint32_t kSteps = 3;

  __device__ explicit CodeChunks(uint32_t lane) : token(lane / 2), chunk(lane % 2) {}
  __device__ uint32_t codes(uint32_t step) const {
    return fp8_tile_offset(96, token, chunk + 2 * step);
  }
  __device__ uint32_t values(uint32_t step, uint32_t half) const {
    return tile_offset(96, token, 2 * (chunk + 2 * step) + half);
  }

  uint32_t token, chunk;
};

// A warp widens a tile in shared memory.
template <uint32_t D>
__device__ void widen_tile(const unsigned char* codes, unsigned char* values) {
  using Chunks = CodeChunks<D>;
  constexpr uint32_t kAtOnce = Chunks::kSteps < 4 ? Chunks::kSteps : 4;
  const Chunks chunks(threadIdx.x % 32);
#pragma unroll
  for (uint32_t first = 0; first < Chunks::kSteps; first += kAtOnce) {
    uint4 from[kAtOnce];
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      from[n] = *reinterpret_cast<const uint4*>(codes + chunks.codes(first + n));
    }
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      auto* low = reinterpret_cast<uint4*>(values + chunks.values(first + n, 0));
      auto* high = reinterpret_cast<uint4*>(values + chunks.values(first + n, 1));
      *low = widen_codes(from[n].x, from[n].y);
      *high = widen_codes(from[n].z, from[n].w);
    }
  }
}

// The scale of token t of the tile that holds the keys from 16 * page on: zero for keys that no row
// of a tile of queries sees, whose slots may hold anything.
template <uint32_t D>
__device__ float seen_scale(const Tile& tile, int32_t page, const unsigned char* codes,
                            uint32_t t) {
  const int32_t key = page * static_cast<int32_t>(kPageTokens) + static_cast<int32_t>(t);
  if (key < tile.key_begin || key >= tile.key_end) return 0.0f;
  return *reinterpret_cast<const float*>(codes + fp8_scale_offset(D, t));
}

// How a warp applies the scales of a block's keys. 16-bit values have none.
template <KvType type>
class BlockScales {
 public:
  template <int N>
  __device__ void scale_products(const float*, float (&)[N][4]) const {}
  template <int N>
  __device__ bool scale_weights(const float*, float (&)[N][4], bool moved, float (&)[2]) {
    return moved;
  }
  __device__ float unit() const { return 1.0f; }
};

template <>
class BlockScales<KvType::kFP8> {
 public:
  // x: products with keys, scales [8 N] of the keys.
  template <int N>
  __device__ void scale_products(const float* scales, float (&x)[N][4]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float2 two = pair(scales, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] *= i % 2 == 0 ? two.x : two.y;
    }
  }

  // x: weights, scales [8 N] of the values. Sums are in units that follow the largest scale so
  // far, so that weights neither overflow in f16 nor vanish. moved and factor: RowPair::weigh()'s;
  // returns whether sums of earlier weights are to be scaled by factor.
  template <int N>
  __device__ bool scale_weights(const float* scales, float (&x)[N][4], bool moved,
                                float (&factor)[2]) {
    float largest = 0.0f;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float2 two = pair(scales, j);
      largest = fmaxf(largest, fmaxf(two.x, two.y));
    }
    largest *= kHeadroom;
    const bool raised = __any_sync(~0u, largest > unit_);
    if (raised) {
      for (int mask = 1; mask < 4; mask *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
      }
      for (float& x : factor) x = (moved ? x : 1.0f) * __fdividef(unit_, largest);
      unit_ = largest;
    }
    const float inverse = __fdividef(1.0f, unit_);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float2 two = pair(scales, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] *= (i % 2 == 0 ? two.x : two.y) * inverse;
    }
    return moved || raised;
  }

  __device__ float unit() const { return unit_; }

 private:
  // Of columns 8 j + lane % 4 * 2 and the next.
  __device__ static float2 pair(const float* scales, int j) {
    return *reinterpret_cast<const float2*>(scales + 8 * j + threadIdx.x % 4 * 2);
  }

  float unit_ = kLeastUnit;
};

}  // namespace reprise::kernels::cuda::prefill

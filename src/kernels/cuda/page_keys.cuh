// Products of the keys of a page with queries, straight from global memory.
#pragma once

#include "kernels/cuda/kv_fragments.cuh"
#include "kernels/cuda/kv_load.cuh"
#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

inline constexpr float kLog2OfE = 1.44269504f;

// Eight queries. Lane l has query l / 4, and of every 32 dimensions the eight from l % 4 * 8 on, in
// whatever order products sum them up.
template <KvType type, uint32_t D>
struct EightQueries {
  static constexpr uint32_t kSteps = D / 32;
  uint4 dims[kSteps];

  __device__ static uint32_t dim(uint32_t step) { return step * 32 + threadIdx.x % 4 * 8; }
  __device__ static uint32_t lane_query() { return threadIdx.x % 32 / 4; }

  // from: the lane's query, [D].
  __device__ void load(const __nv_bfloat16* from) {
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
      const uint4 eight = *reinterpret_cast<const uint4*>(from + dim(step));
      dims[step] = {operand(eight.x), operand(eight.y), operand(eight.z), operand(eight.w)};
    }
  }

 private:
  __device__ static uint32_t operand(uint32_t two) {
    const auto pair = reinterpret_cast<const __nv_bfloat162&>(two);
    return pack<Operand<type>>(__low2float(pair), __high2float(pair));
  }
};

// The keys of a K tile, of which lane l has tokens l / 4 and l / 4 + 8.
template <KvType type, uint32_t D>
class TileKeys {
 public:
  __device__ explicit TileKeys(const unsigned char* tile) {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t token = lane_token(half);
      scales_[half] = token_scale<type, D>(tile, token);
#pragma unroll
      for (uint32_t step = 0; step < D / 32; ++step) {
        keys_[step][half] = load_eight(tile, token, EightQueries<type, D>::dim(step));
      }
    }
  }

  __device__ static uint32_t lane_token(uint32_t half) { return threadIdx.x % 32 / 4 + 8 * half; }

  // logits[2 half + i] of token lane_token(half) and query l % 4 * 2 + i.
  __device__ void multiply_by(const EightQueries<type, D>& q, float (&logits)[4]) const {
    for (float& x : logits) x = 0.0f;
#pragma unroll
    for (uint32_t step = 0; step < D / 32; ++step) {
      const uint4 &a = keys_[step][0], &b = keys_[step][1], &two = q.dims[step];
      multiply<Operand<type>>(logits, {a.x, b.x, a.y, b.y}, {two.x, two.y});
      multiply<Operand<type>>(logits, {a.z, b.z, a.w, b.w}, {two.z, two.w});
    }
    for (uint32_t i = 0; i < 4; ++i) logits[i] *= scales_[i / 2];
  }

 private:
  // As bulk_copy_once().
  __device__ static uint4 load_eight(const unsigned char* tile, uint32_t token, uint32_t dim) {
    const unsigned char* from = tile + element_offset(type, D, token, dim);
    if constexpr (type == KvType::kFP8) {
      const uint2 codes = __ldcs(reinterpret_cast<const uint2*>(from));
      return {widen_e4m3<false>(codes.x), widen_e4m3<true>(codes.x), widen_e4m3<false>(codes.y),
              widen_e4m3<true>(codes.y)};
    } else {
      return __ldcs(reinterpret_cast<const uint4*>(from));
    }
  }

  uint4 keys_[D / 32][2];
  float scales_[2];
};

// A logit in units of log2.
__device__ inline float scaled_logit(float product, float scale, float soft_cap) {
  float logit = product * scale;
  if (soft_cap > 0.0f) logit = soft_cap * tanhf(logit / soft_cap);
  return logit * kLog2OfE;
}

}  // namespace reprise::kernels::cuda

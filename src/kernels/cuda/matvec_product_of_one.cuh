// What a warp multiplies where there is one row of x, for weights of has_product_of_one().
#pragma once

#include "kernels/cuda/matvec_params.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

// Like Products. The eight columns of tensor cores are not rows of x, but the high bytes of its
// first to fourth 32 columns of a unit and their low bytes: what belongs to other 32 columns is 0.
// So a unit makes one sum for each scale instead of eight rows of them.
template <class F>
class ProductsOfOne {
 public:
  struct Loaded {
    uint4 top, bottom;                   // rows g and g + 8
    uint32_t top_scales, bottom_scales;  // two each
  };

  __device__ ProductsOfOne(const Part& part, uint32_t, const unsigned char* memory)
      : x_(memory + part.input_at + group() % 4 * kInputBlockBytes + t() * 16 + group() / 4 * 8),
        units_(reinterpret_cast<const float*>(memory + part.units_at) +
               t() % 2 * 2 * kMatvecBatch) {}

  __device__ static Loaded load(const unsigned char* read) {
    const unsigned char *codes = read + threadIdx.x % 32 * 16,
                        *scales = read + kUnitBytes + group() * F::kChunkScaleBytes + t() % 2 * 4;
    return {*reinterpret_cast<const uint4*>(codes),
            *reinterpret_cast<const uint4*>(codes + kUnitBytes / 2),
            *reinterpret_cast<const uint32_t*>(scales),
            *reinterpret_cast<const uint32_t*>(scales + 8 * F::kChunkScaleBytes)};
  }

  __device__ void reset() {
    for (float& v : v_) v = 0.0f;
  }

  __device__ void add(const Loaded& codes, uint32_t index) {
    constexpr uint32_t kBlocks = 4;
    const auto own = *reinterpret_cast<const uint2*>(x_ + index * (kBlocks * kInputBlockBytes));
    const float* units = units_ + index * (kBlocks * kMatvecBatch);
    const float2 unit = {units[0], units[kMatvecBatch]};
    int sums[4] = {};
#pragma unroll
    for (uint32_t block = 0; block < kBlocks; ++block) {
      uint32_t t[2], b[2];
      code_words<F>(codes.top, block, t);
      code_words<F>(codes.bottom, block, b);
      const bool mine = group() % 4 == block;
      multiply_codes(sums, {t[0], b[0], t[1], b[1]}, {mine ? own.x : 0, mine ? own.y : 0});
    }
    const float2 top = __half22float2(reinterpret_cast<const __half2&>(codes.top_scales)),
                 bottom = __half22float2(reinterpret_cast<const __half2&>(codes.bottom_scales));
    v_[0] += static_cast<float>(sums[0]) * (unit.x * top.x);
    v_[1] += static_cast<float>(sums[1]) * (unit.y * top.y);
    v_[2] += static_cast<float>(sums[2]) * (unit.x * bottom.x);
    v_[3] += static_cast<float>(sums[3]) * (unit.y * bottom.y);
  }

  // sums [16 rows]
  __device__ void store(float* sums, uint32_t) const {
    const float byte = t() < 2 ? 256.0f : 1.0f;
    float top = (v_[0] + v_[1]) * byte, bottom = (v_[2] + v_[3]) * byte;
    for (uint32_t mask = 1; mask < 4; mask *= 2) {
      top += __shfl_xor_sync(~0u, top, mask);
      bottom += __shfl_xor_sync(~0u, bottom, mask);
    }
    if (t() != 0) return;
    sums[group()] = top;
    sums[group() + 8] = bottom;
  }

 private:
  __device__ static uint32_t t() { return threadIdx.x % 4; }
  __device__ static uint32_t group() { return threadIdx.x % 32 / 4; }

  const unsigned char* x_;
  const float* units_;
  float v_[4];
};

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda

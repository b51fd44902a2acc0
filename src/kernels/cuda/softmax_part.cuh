// What softmax divides by, summed up piece by piece.
#pragma once

#include <cmath>

#include "kernels/cuda/mma.cuh"

namespace reprise::kernels::cuda {

// Softmax's base and sum, in units of log2.
struct Part {
  float base = -INFINITY, sum = 0.0f;

  __device__ void add(float logit) {
    const float top = fmaxf(base, logit);
    sum = sum * exp2_fast(base - top) + exp2_fast(logit - top);
    base = top;
  }
  __device__ void add(const Part& other) {
    const float top = fmaxf(base, other.base);
    if (top == -INFINITY) return;
    sum = sum * exp2_fast(base - top) + other.sum * exp2_fast(other.base - top);
    base = top;
  }
  // Of lanes that differ in these bits.
  __device__ void merge_lanes(uint32_t masks) {
    for (uint32_t mask = 1; mask < 32; mask *= 2) {
      if ((masks & mask) == 0) continue;
      add(Part{__shfl_xor_sync(~0u, base, mask), __shfl_xor_sync(~0u, sum, mask)});
    }
  }
};

}  // namespace reprise::kernels::cuda

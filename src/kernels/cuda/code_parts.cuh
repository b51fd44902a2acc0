// What softmax divides by, of the query heads of a KV head, as the warps that score codes know it.
#pragma once

#include "kernels/cuda/code_splits.cuh"
#include "kernels/cuda/softmax_part.cuh"

namespace reprise::kernels::cuda {

// What a warp knows of all query heads.
template <uint32_t kWords>
struct Parts {
  static constexpr uint32_t kTiles = (kWords + 1) / 2;
  Part exact[kTiles][2];  // of the lane's heads: 8 tile + lane % 4 * 2 and the next
  Part coded[kWords];     // of head 4 word + lane / 4 % 4

  // to: [2][4 kWords]
  __device__ void publish(Part* to) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      for (uint32_t i = 0; i < 2; ++i) {
        exact[tile][i].merge_lanes(4 | 8 | 16);
        const uint32_t head = 8 * tile + 2 * lane + i;
        if (lane < 4 && head < 4 * kWords) to[head] = exact[tile][i];
      }
    }
    for (uint32_t word = 0; word < kWords; ++word) {
      coded[word].merge_lanes(1 | 2 | 16);
      if (lane < 16 && lane % 4 == 0) to[4 * (kWords + word) + lane / 4] = coded[word];
    }
  }
};

// What all warps know of a head. A thread for every half of a warp's parts and head of 16.
template <uint32_t kWords>
__device__ void merge_parts(const Part (&parts)[kScoreWarps][2][4 * kWords], uint32_t group,
                            float2* out) {
  const uint32_t i = threadIdx.x % 16, head = threadIdx.x / 16;
  Part all;
  if (head < group) all = parts[i / 2][i % 2][head];
  all.merge_lanes(1 | 2 | 4 | 8);
  if (i == 0 && head < group) out[head] = {all.base, all.sum};
}

}  // namespace reprise::kernels::cuda

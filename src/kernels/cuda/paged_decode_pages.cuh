// Pages of many pairs, laid end to end.
#pragma once

#include "kernels/cuda/paged_decode_params.cuh"

namespace reprise::kernels::cuda {

namespace decode {

// first_page [pairs + 1]: exclusive prefix sums of pages(pair). scan: [kWarps]. All threads.
template <typename S, typename Pages>
__device__ void count_pages(uint32_t pairs, uint32_t* scan, uint32_t* first_page,
                            const Pages& pages) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t before = 0;
  for (uint32_t start = 0; start < pairs; start += S::kThreads) {
    const uint32_t pair = start + threadIdx.x;
    uint32_t count = 0;
    if (pair < pairs) count = pages(pair);
    uint32_t sum = count;
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += left;
    }
    if (lane == 31) scan[warp] = sum;
    __syncthreads();
    uint32_t warps_before = 0, all = 0;
    for (uint32_t w = 0; w < S::kWarps; ++w) {
      if (w < warp) warps_before += scan[w];
      all += scan[w];
    }
    if (pair < pairs) first_page[pair] = before + warps_before + sum - count;
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) first_page[pairs] = before;
  __syncthreads();
}

// The pair that contains a page.
__device__ inline uint32_t pair_of(const uint32_t* first_page, uint32_t pairs, uint32_t page) {
  uint32_t low = 0, high = pairs;  // first_page[low] <= page < first_page[high]
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (first_page[middle] <= page ? low : high) = middle;
  }
  return low;
}

}  // namespace decode

}  // namespace reprise::kernels::cuda

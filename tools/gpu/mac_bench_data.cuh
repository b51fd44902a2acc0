// Rings and queries of mac_bench.
#pragma once

#include "gpu/bench_data.cuh"
#include "kernels/cuda/mac_ring.cuh"

namespace reprise::kernels::cuda {

constexpr uint32_t kHeads = 32, kKvHeads = 8, kDim = 128, kGroup = kHeads / kKvHeads, kWindow = 512;
constexpr int32_t kLag = 300;

// Entries of the positions before one, all alike but for their positions.
__global__ void fill_entries(MacEntry* entries, size_t count, int32_t position) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const auto slot = static_cast<int32_t>(i / kGroup % kWindow);
    int32_t at = position / kWindow * static_cast<int32_t>(kWindow) + slot;
    if (at >= position) at -= kWindow;
    entries[i] = {at, at, 8.0f, 0.5f, 0.0f, 0};
  }
}

// The same numbers as q8_0. Whole warps.
__global__ void make_codes(const __nv_bfloat16* from, size_t count, int8_t* codes, float* scales) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count / 2;
       i += size_t{gridDim.x} * blockDim.x) {
    const float2 two = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(from)[i]);
    mac::store_codes(codes, scales, 2 * i, two);
  }
}

// hits: [pairs]; ring_q: [pairs][window][group][dim]
__global__ void make_queries(const uint8_t* hits, const __nv_bfloat16* ring_q, int32_t position,
                             size_t count, uint64_t seed, float* plain) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const size_t pair = i / (kGroup * kDim),
                 slot = static_cast<uint32_t>(position - kLag) % kWindow;
    const size_t from = (pair * kWindow + slot) * kGroup * kDim + i % (kGroup * kDim);
    const float x = noise(i + (seed << 40));
    plain[i] = hits[pair] != 0 ? __bfloat162float(ring_q[from]) + 0.1f * x : x;
  }
}

}  // namespace reprise::kernels::cuda

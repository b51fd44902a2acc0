#include <algorithm>

#include "kernels/cuda/page_copy.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256, kLoaded = 4;
constexpr uint32_t kBlocks = 64;  // 1 MB on its way at a time: several times what the bus needs

// A block copies kThreads * kLoaded chunks of 16 bytes of a page at a time.
__global__ void __launch_bounds__(kThreads)
    copy_kernel(unsigned char* base, uint64_t page_bytes, const uint32_t* from, const uint32_t* to,
                uint32_t count) {
  const uint32_t chunks = static_cast<uint32_t>(page_bytes / 16);
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const auto* source = reinterpret_cast<const uint4*>(base + from[i] * page_bytes);
    auto* target = reinterpret_cast<uint4*>(base + to[i] * page_bytes);
    for (uint32_t first = threadIdx.x; first < chunks; first += kThreads * kLoaded) {
      uint4 loaded[kLoaded];
#pragma unroll
      for (uint32_t j = 0; j < kLoaded; ++j) {
        const uint32_t chunk = first + j * kThreads;
        if (chunk < chunks) loaded[j] = source[chunk];
      }
#pragma unroll
      for (uint32_t j = 0; j < kLoaded; ++j) {
        const uint32_t chunk = first + j * kThreads;
        if (chunk < chunks) target[chunk] = loaded[j];
      }
    }
  }
}

}  // namespace

cudaError_t copy_pages(void* base, uint64_t page_bytes, const uint32_t* from, const uint32_t* to,
                       uint32_t count, cudaStream_t stream) {
  if (page_bytes % 16 != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  copy_kernel<<<std::min(count, kBlocks), kThreads, 0, stream>>>(static_cast<unsigned char*>(base),
                                                                 page_bytes, from, to, count);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

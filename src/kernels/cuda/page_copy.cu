#include <algorithm>

#include "kernels/cuda/page_copy.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256, kLoaded = 4;
constexpr uint32_t kBlocks = 64;  // 1 MB on its way at a time: several times what the bus needs

// A block copies kThreads * kLoaded chunks of 16 bytes of a page at a time.
// to: null for pages 0, 1, ...
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const unsigned char* base, uint64_t page_bytes, const uint32_t* from,
                unsigned char* to_base, const uint32_t* to, uint32_t count) {
  const uint32_t chunks = static_cast<uint32_t>(page_bytes / 16);
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    if (from[i] == ~0u) continue;
    const auto* source = reinterpret_cast<const uint4*>(base + from[i] * page_bytes);
    auto* target = reinterpret_cast<uint4*>(to_base + (to != nullptr ? to[i] : i) * page_bytes);
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

cudaError_t launch(const void* base, uint64_t page_bytes, const uint32_t* from, void* to_base,
                   const uint32_t* to, uint32_t count, cudaStream_t stream) {
  if (page_bytes % 16 != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  copy_kernel<<<std::min(count, kBlocks), kThreads, 0, stream>>>(
      static_cast<const unsigned char*>(base), page_bytes, from,
      static_cast<unsigned char*>(to_base), to, count);
  return cudaGetLastError();
}

}  // namespace

cudaError_t copy_pages(void* base, uint64_t page_bytes, const uint32_t* from, const uint32_t* to,
                       uint32_t count, cudaStream_t stream) {
  return launch(base, page_bytes, from, base, to, count, stream);
}

cudaError_t gather_pages(const void* base, uint64_t page_bytes, const uint32_t* pages,
                         uint32_t count, void* to, cudaStream_t stream) {
  return launch(base, page_bytes, pages, to, nullptr, count, stream);
}

}  // namespace reprise::kernels::cuda

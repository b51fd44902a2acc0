#include "kernels/cuda/peak.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 512, kBlocksPerProcessor = 3;
constexpr uint32_t kLoads = 4;  // of 16 bytes that a thread has in flight
static_assert(kThreads * kLoads * sizeof(uint4) == kReadPieceBytes);

// Past L1, which would serve small buffers' later rounds.
__device__ uint4 load_from_l2(const uint4* at) {
  uint4 value;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(at));
  return value;
}

__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    read_kernel(const uint4* data, uint32_t pieces, uint32_t turns, uint32_t* sum) {
  __shared__ uint32_t of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  uint32_t own = 0;
  for (uint32_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
    const uint4* piece = data + size_t{turn % pieces} * (kThreads * kLoads) + threadIdx.x;
    uint4 values[kLoads];
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) values[i] = load_from_l2(piece + i * kThreads);
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      own += values[i].x + values[i].y + values[i].z + values[i].w;
    }
  }
  const uint32_t of_warp = __reduce_add_sync(0xffffffffu, own);
  if (threadIdx.x % 32 == 0) atomicAdd(&of_block, of_warp);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(sum, of_block);
}

}  // namespace

cudaError_t read_all(const void* data, size_t bytes, uint32_t rounds, uint32_t* sum,
                     cudaStream_t stream) {
  const size_t pieces = bytes / kReadPieceBytes;
  if (pieces == 0 || bytes % kReadPieceBytes != 0 || pieces * rounds > 0xffffffffu) {
    return cudaErrorInvalidValue;
  }
  int device = 0, processors = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  const cudaError_t status =
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  const uint32_t blocks = static_cast<uint32_t>(processors) * kBlocksPerProcessor;
  read_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data),
                                               static_cast<uint32_t>(pieces),
                                               static_cast<uint32_t>(pieces) * rounds, sum);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

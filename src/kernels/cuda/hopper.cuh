// Instructions for streaming copies, clusters and overlapping launches of compute capability 9.0.
#pragma once

#include <cstdint>

#include "kernels/cuda/mma.cuh"

namespace reprise::kernels::cuda {

// bits & mask | rest, in one instruction: the compiler would take two for two constants.
__device__ inline uint32_t masked_or(uint32_t bits, uint32_t mask, uint32_t rest) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(bits), "r"(mask), "r"(rest));
  return r;
}

// bits & mask ^ flips.
__device__ inline uint32_t masked_flip(uint32_t bits, uint32_t mask, uint32_t flips) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(r) : "r"(bits), "r"(mask), "r"(flips));
  return r;
}

// copy_16_bytes_once() of weights that are read in pieces of rows: brings what is beside it to L2.
__device__ inline void copy_16_bytes_of_256(void* to, const void* from) {
  asm volatile(
      "{\n.reg .b64 first;\n"
      "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
      "cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, first;\n}" ::"r"(
          shared_address(to)),
      "l"(from)
      : "memory");
}

__device__ inline void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most so many groups of this thread are on their way.
template <int groups>
__device__ inline void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// All threads of all blocks of the cluster.
__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#else
  __syncthreads();
#endif
}

// The same place of shared memory in another block of the cluster.
__device__ inline float load_remote(const float* own, uint32_t block) {
  float v = *own;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .u32 a;\n"
      "mapa.shared::cluster.u32 a, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [a];\n}"
      : "=f"(v)
      : "r"(shared_address(own)), "r"(block)
      : "memory");
#endif
  return v;
}

// Lets the next kernel of the stream begin, if it was launched to overlap.
__device__ inline void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until kernels before this one have ended and their results are visible.
__device__ inline void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace reprise::kernels::cuda

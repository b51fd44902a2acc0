// Codes of a warp's keys on their way to shared memory.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/key_codes.h"

namespace reprise::kernels::cuda {

/// Two slots: codes of one are used while others come to the other one.
struct CodeRing {
  static constexpr uint32_t kSlots = 2, kPlanes = 16, kSlotBytes = kPlanes * kCodeBlock;
  alignas(128) uint8_t codes[kSlots][kSlotBytes];
  uint64_t full[kSlots];
};

/// Blocks of codes in turn, kPlanes planes in all, CodeRing::kPlanes at a time: also planes that
/// are not used, as one copy of all is faster than many. All lanes of the warp call. block_of(n):
/// the n-th block's planes.
template <uint32_t kPlanes, typename BlockOf>
class CodeStream {
 public:
  __device__ CodeStream(CodeRing& ring, uint32_t blocks, const BlockOf& block_of)
      : ring_(ring), blocks_(blocks), block_of_(block_of) {
#if __CUDA_ARCH__ >= 900
    if (lane() < CodeRing::kSlots) barrier_init(&ring.full[lane()], 1);
    publish_barriers();
#endif
    if (blocks > 0) from_ = block_of(0);
    for (uint32_t slot = 0; slot < CodeRing::kSlots; ++slot) fetch(slot);
  }

  // The next planes.
  __device__ const uint8_t* wait() {
#if __CUDA_ARCH__ >= 900
    barrier_wait(&ring_.full[slot_], parity_);
#else
    wait_for_copy_groups<CodeRing::kSlots - 1>();
    __syncwarp();
#endif
    return ring_.codes[slot_];
  }
  // Nobody reads these planes any more.
  __device__ void release() {
    fetch(slot_);
    slot_ ^= 1;
    if (slot_ == 0) parity_ ^= 1;
  }

 private:
  __device__ static uint32_t lane() { return threadIdx.x % 32; }

  __device__ void fetch(uint32_t slot) {
    __syncwarp();
    if (block_ < blocks_) {
      const uint32_t bytes = min(CodeRing::kPlanes, kPlanes - plane_) * kCodeBlock;
      copy(slot, from_ + plane_ * kCodeBlock, bytes);
      plane_ += CodeRing::kPlanes;
      if (plane_ >= kPlanes) {
        plane_ = 0;
        if (++block_ < blocks_) from_ = block_of_(block_);
      }
    }
#if __CUDA_ARCH__ < 900
    end_copy_group();
#endif
  }

  __device__ void copy(uint32_t slot, const uint8_t* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    if (lane() != 0) return;
    barrier_expect(&ring_.full[slot], bytes);
    bulk_copy_once(ring_.codes[slot], from, bytes, &ring_.full[slot]);
#else
    for (uint32_t at = lane() * 16; at < bytes; at += 32 * 16) {
      copy_16_bytes_once(ring_.codes[slot] + at, from + at);
    }
#endif
  }

  CodeRing& ring_;
  uint32_t blocks_;
  const BlockOf& block_of_;
  const uint8_t* from_ = nullptr;
  uint32_t block_ = 0, plane_ = 0;  // to be fetched
  uint32_t slot_ = 0, parity_ = 0;
};

}  // namespace reprise::kernels::cuda

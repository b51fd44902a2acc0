// Where the tokens of KeptKeys lie, and copies of them.
#pragma once

#include "kernels/cuda/kept_keys.h"

namespace reprise::kernels::cuda {

struct TokenPlace {
  uint32_t page, slot;
};

__device__ inline uint32_t key_count(const KeptKeys& keys) {
  return static_cast<uint32_t>(keys.side + keys.end - keys.begin);
}

__device__ inline TokenPlace place_of(const KeptKeys& keys, uint32_t key) {
  const auto side = static_cast<uint32_t>(keys.side);
  if (key < side) return {keys.side_pages[key / kPageTokens], key % kPageTokens};
  const uint32_t token = static_cast<uint32_t>(keys.begin) + key - side;
  return {keys.pages[token / kPageTokens], token % kPageTokens};
}

// A token's key and value of one KV head, in the registers of a warp.
class TokenCopy {
 public:
  __device__ void load(const PagedKv& kv, uint32_t kv_head, TokenPlace from) {
    const unsigned char* tile = tiles(kv, kv_head, from.page);
    for (uint32_t i = 0; i < 2; ++i, tile += tile_bytes(kv.type, kv.head_dim)) {
      if (lane() < chunks(kv)) {
        chunk_[i] = *reinterpret_cast<const uint4*>(tile + offset(kv, from.slot));
      }
      if (kv.type == KvType::kFP8) scale_[i] = *scale_of(kv, tile, from.slot);
    }
  }

  __device__ void store(const PagedKv& kv, uint32_t kv_head, TokenPlace to) const {
    unsigned char* tile = tiles(kv, kv_head, to.page);
    for (uint32_t i = 0; i < 2; ++i, tile += tile_bytes(kv.type, kv.head_dim)) {
      if (lane() < chunks(kv)) *reinterpret_cast<uint4*>(tile + offset(kv, to.slot)) = chunk_[i];
      if (kv.type == KvType::kFP8 && lane() == 0) {
        *const_cast<float*>(scale_of(kv, tile, to.slot)) = scale_[i];
      }
    }
  }

 private:
  __device__ static uint32_t lane() { return threadIdx.x % 32; }
  __device__ static uint32_t chunks(const PagedKv& kv) {
    return kv.head_dim / (kv.type == KvType::kFP8 ? 16 : 8);
  }
  __device__ static unsigned char* tiles(const PagedKv& kv, uint32_t kv_head, uint32_t page) {
    const size_t tile = (size_t{page} * kv.n_kv_head + kv_head) * 2;
    return static_cast<unsigned char*>(const_cast<void*>(kv.pages)) +
           tile * tile_bytes(kv.type, kv.head_dim);
  }
  __device__ static uint32_t offset(const PagedKv& kv, uint32_t slot) {
    return kv.type == KvType::kFP8 ? fp8_tile_offset(kv.head_dim, slot, lane())
                                   : tile_offset(kv.head_dim, slot, lane());
  }
  __device__ static const float* scale_of(const PagedKv& kv, const unsigned char* tile,
                                          uint32_t slot) {
    return reinterpret_cast<const float*>(tile + fp8_scale_offset(kv.head_dim, slot));
  }

  uint4 chunk_[2];
  float scale_[2];
};

__device__ inline float weight_score(KeyWeight weight, bool per_row) {
  return per_row ? weight.x / fmaxf(weight.y, 1.0f) : weight.x;
}

}  // namespace reprise::kernels::cuda

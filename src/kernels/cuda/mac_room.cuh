// The workspace of MAC-Attention's kernel, and the kernel of each KV type.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mac.h"
#include "kernels/cuda/mac_params.cuh"

namespace reprise::kernels::cuda {

namespace mac {

inline constexpr uint32_t kMaxPairs = 4096, kMaxBlocks = 2;  // blocks: of a multiprocessor

// Warps of a block, at least.
constexpr uint32_t least_warps(uint32_t head_dim) { return head_dim > 128 ? 4 : 8; }

// Of a pair, enough for every row: see mac_lists.cuh.
struct ChunkCounts {
  uint32_t fresh, near;

  ChunkCounts(const MacRules& rules, uint32_t pages) {
    const auto count = [&](uint32_t keys) {  // that may begin anywhere in a page
      return (keys / kPageTokens + 1 + pages) / pages;
    };
    const auto align = static_cast<uint32_t>(rules.align);
    const uint32_t sinks = (static_cast<uint32_t>(rules.sink) + kPageTokens - 1) / kPageTokens;
    fresh = count(sinks * kPageTokens + static_cast<uint32_t>(rules.band) + align);
    near = count(static_cast<uint32_t>(rules.max_gap) + align);
  }
};

// A workspace: the grid's barrier and arrivals, decode attention's pieces, and messages, which
// nothing else may write: whatever the batch, they begin at the same place.
struct Room {
  static constexpr size_t kBarrierWords = 4, kWords = kBarrierWords + kMaxPairs;
  size_t decode_rows, candidates, rows;  // of heads

  Room(uint32_t pairs, uint32_t group, uint32_t chunks) {
    const size_t blocks = size_t{kMaxBlocks} * device_limits().multiprocessors;
    decode_rows = 2 * blocks * group;
    candidates = (pairs + blocks) * group;
    rows = (pairs * (size_t{chunks} + 1) + blocks) * group;
  }
  // Floats of decode attention's pieces, in whole messages.
  size_t decode_floats(uint32_t head_dim) const {
    return (decode_rows * (head_dim + 2) + 3) / 4 * 4;
  }
  size_t bytes(uint32_t head_dim) const {
    return (kWords + decode_floats(head_dim)) * sizeof(float) +
           (candidates + rows * (head_dim / 2 + 1)) * sizeof(Message);
  }
};

/// mac_decode, for args that it takes; see mac_kv.cu.
template <KvType type>
cudaError_t decode_with(const MacArgs& args, cudaStream_t stream);

}  // namespace mac

}  // namespace reprise::kernels::cuda

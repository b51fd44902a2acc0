// How the codes of a row and KV head are shared out.
#pragma once

#include <algorithm>

#include "kernels/cuda/key_codes.h"
#include "kernels/cuda/launch.cuh"

namespace reprise::kernels::cuda {

inline constexpr uint32_t kScoreWarps = 8;

inline constexpr uint32_t kScoreBlocks = 2;  // of a multiprocessor: lookups want registers

/// Keys of a lane, as many as sums have registers for.
REPRISE_HOST_DEVICE constexpr uint32_t lane_keys(uint32_t words) { return words <= 2 ? 8 : 4; }

/// Of a KV head: so many blocks have halves of units, and pages that are read in any case.
REPRISE_HOST_DEVICE constexpr uint32_t most_splits(uint32_t capacity) {
  const uint32_t halves = capacity / (kBlockPages / 2) + kScoreWarps;
  return (halves + kScoreWarps - 1) / kScoreWarps;
}

/// Every multiprocessor gets its blocks while there is work for them.
inline uint32_t code_splits(const CodeSearchArgs& args) {
  const uint32_t n_kv_head = args.rows.shape.n_kv_head;
  const uint32_t resident = device_limits().multiprocessors * kScoreBlocks;
  return std::clamp(resident / (args.rows.count * n_kv_head), 1u, most_splits(args.rows.capacity));
}

/// What a warp scores: units in rounds over all warps, then perhaps one more, or half of one where
/// there are warps for both halves.
struct WarpUnits {
  uint32_t warps, warp, rounds, left;
  bool halves;

  __device__ WarpUnits(uint32_t units, uint32_t warps, uint32_t warp, bool may_halve)
      : warps(warps), warp(warp), rounds(units / warps), left(units % warps) {
    halves = may_halve && 2 * left <= warps;
    if (halves) left *= 2;
  }
  __device__ uint32_t count() const { return rounds + (warp < left ? 1 : 0); }
  __device__ bool is_half(uint32_t n) const { return halves && n == rounds; }
  // In halves of units.
  __device__ uint32_t begin(uint32_t n) const {
    if (is_half(n)) return 2 * rounds * warps + warp;
    return 2 * (n * warps + warp);
  }
};

}  // namespace reprise::kernels::cuda

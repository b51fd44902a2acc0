// What every part of the matvec kernel knows.
#pragma once

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/weight_codes.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

// A block is one per multiprocessor; each warp has kStages units on their way. Small matrices leave
// room for the next kernel: their blocks have fewer warps.
constexpr uint32_t kMaxWarps = 16, kStages = 4;

// How x lies in shared memory. Bf16: per 32 columns 64 bytes of x rounded and 64 of what rounding
// left, columns in order or in the order of the slots of a quantised piece.
enum class InputLayout : uint8_t { kFloat, kOrdered, kSlots };

// One matrix and the clusters of blocks that work on it. Blocks of a cluster share its columns;
// teams of warps take a tile each per round, their members its chunks in turn.
struct Part {
  DeviceWeights w;
  float* out;
  size_t out_stride;
  const float* bias;
  bool accumulate;
  InputLayout layout;
  uint32_t sum_columns;  // whose sum of x is needed: 16, 32 or 0
  float sum_factor;      // of the sums
  uint32_t slice;        // chunks of a block
  uint32_t columns;      // of a slice, with padding
  uint32_t first_cluster, clusters;
  uint32_t teams, members, rounds;
  uint32_t input_at, input_stride, sums_at;  // bytes, from the start of shared memory
};

struct Params {
  Part parts[kMatvecProjections];
  uint32_t count, batch, cols;
  uint32_t cluster_size;  // 1, 2, 4 or 8
  uint32_t warps;         // of a block
  const float* x;
  size_t stride;
  const float* second;  // norm weights or up, or null
  size_t second_stride;
  bool norm, gated, aligned;
  float norm_eps;
  Activation activation;
};

// The start of shared memory; then [warp][stage] units, x [batch][input_stride] and its sums
// [group][8].
struct alignas(128) Shared {
  float4 partials[kMaxWarps][32];  // of a tile, as tensor cores leave it
  float squares[kMaxWarps][kMatvecBatch];
  float totals[kMatvecBatch];  // of squares
};

// Where a warp stands.
struct Place {
  uint32_t cluster, block;  // of the part, of the cluster
  uint32_t team, member;
  uint32_t begin, end;  // chunks

  __device__ Place(const Part& part, uint32_t cluster_size) {
    const uint32_t warp = threadIdx.x / 32;
    cluster = blockIdx.x / cluster_size - part.first_cluster;
    block = blockIdx.x % cluster_size;
    team = warp / part.members;
    member = warp % part.members;
    begin = min(block * part.slice, part.w.chunks);
    end = min(begin + part.slice, part.w.chunks);
  }
  // Of the team in a round; none from w.tiles on.
  __device__ uint32_t tile(const Part& part, uint32_t round) const {
    if (team >= part.teams) return part.w.tiles;
    return (round * part.clusters + cluster) * part.teams + team;
  }
};

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda

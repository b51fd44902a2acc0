// What every part of the matvec kernel knows.
#pragma once

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/weight_codes.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

// A block has as many warps as have columns, at most; a warp has as many reads on their way as fit
// in its ring. Codes take longer to multiply than to come, so they need more warps, and less on its
// way to each: half of a multiprocessor is enough for one row of x of usual length, and in the
// other half the next launch waits with its first weights fetched.
constexpr uint32_t kWarps = 16;
constexpr uint32_t block_warps(const DeviceFormat& format) {
  return format.quantized() ? kWarps : 8;
}
constexpr uint32_t ring_stages(const DeviceFormat& format) {
  return (format.quantized() ? 3520u : 10880u) / read_bytes(format);
}
// Of a cluster between barriers.
constexpr uint32_t kMaxRoundOutputs = 64 * kMatvecBatch;
constexpr uint32_t round_outputs(const DeviceFormat& format, uint32_t batch) {
  return format.quantized() && batch > 2 ? 64 * batch : 128;
}
// Whether one row of x alone is multiplied by a kernel of its own.
constexpr bool has_product_of_one(const DeviceFormat& format) {
  return format.quantized() && format.chunk_columns() == 128 && format.group == 32 &&
         !format.has_min && !format.super;
}

// How x lies in shared memory. Codes: 16 bits with a unit per 32 columns, which are 64 bytes: for
// each t the high bytes of slots 0 to 7 of a quantised piece and their low bytes. Bf16: per 32
// columns 64 bytes of x rounded and 64 of what rounding left, in pairs of columns, of x rounded and
// of the rest in turn, first the pairs of columns 8t to 8t + 3, then those of 8t + 4 to 8t + 7.
constexpr uint32_t kInputBlockBytes = 64;  // of codes

// One matrix and the clusters of blocks that work on it, each on every clusters-th tile of rows. A
// row is cut into reads: what a warp fetches at a time of a tile. Blocks of a cluster take a slice
// of a row each, their warps a share of the slice.
struct Part {
  DeviceWeights w;
  float* out;
  size_t out_stride;
  const float* bias;
  bool accumulate;
  uint32_t sum_columns;  // whose sum of x is needed: 16, 32 or 0
  uint32_t reads;        // of a row
  uint32_t slice, share;
  uint32_t share_columns;
  uint32_t first_cluster, clusters;
  uint32_t ring_bytes;                                 // of a warp
  uint32_t input_at, input_stride, units_at, sums_at;  // bytes, from the start of shared memory
};

struct Params {
  Part parts[kMatvecProjections];
  uint32_t count, batch, cols;
  uint32_t cluster_size, cluster_bits;  // 1, 2, 4 or 8, and its logarithm
  uint32_t warps;                       // of a block
  uint32_t round_tiles;                 // of a cluster between barriers
  uint32_t round_outputs;               // the same, at most: see RoundSums
  uint32_t inverse_batch;               // 2^16 / batch, rounded up
  const float* x;
  size_t stride;
  const float* second;  // norm weights or up, or null
  size_t second_stride;
  bool norm, gated, aligned;
  bool mixed, alone;  // parts differ in format; see has_product_of_one
  float norm_eps, inverse_cols;
  Activation activation;
};

// The start of shared memory; then RoundSums, [warp] rings, x [batch][input_stride], its units
// [32 columns][8] and its sums [group][8].
struct alignas(128) Shared {
  float squares[kWarps][kMatvecBatch];
  float totals[kMatvecBatch];  // of squares
};

// Sums of a round and of the one before it: an output is (tile, row of x, row of the tile).
class RoundSums {
 public:
  __host__ __device__ static uint32_t bytes(const Params& p) {
    return 2 * (p.warps + 1) * p.round_outputs * static_cast<uint32_t>(sizeof(float));
  }
  __device__ RoundSums(const Params& p, unsigned char* memory)
      : sums_(reinterpret_cast<float*>(memory + sizeof(Shared))),
        warps_(p.warps),
        outputs_(p.round_outputs) {}

  __device__ float* of_warp(uint32_t parity, uint32_t warp) const {
    return sums_ + (parity * warps_ + warp) * outputs_;
  }
  __device__ float* of_block(uint32_t parity) const {
    return sums_ + (2 * warps_ + parity) * outputs_;
  }
  __device__ uint32_t outputs() const { return outputs_; }

 private:
  float* sums_;
  uint32_t warps_, outputs_;
};

// Where a warp stands.
struct Place {
  uint32_t cluster, block;  // of the part, of the cluster
  uint32_t first;           // read of the block
  uint32_t begin, end;      // reads of the warp
  uint32_t members;         // warps of the block that have any

  __device__ Place(const Part& part, uint32_t cluster_bits) {
    cluster = (blockIdx.x >> cluster_bits) - part.first_cluster;
    block = blockIdx.x & ((1u << cluster_bits) - 1);
    first = min(block * part.slice, part.reads);
    const uint32_t last = min(first + part.slice, part.reads);
    begin = min(first + threadIdx.x / 32 * part.share, last);
    end = min(begin + part.share, last);
    members = (last - first + part.share - 1) / part.share;
  }
};

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda

// The matvec kernel: streams weights through every warp and adds up what warps and blocks have.
#pragma once

#include <type_traits>

#include "kernels/cuda/matvec_input.cuh"
#include "kernels/cuda/matvec_product_of_one.cuh"
#include "kernels/cuda/matvec_products.cuh"
#include "kernels/cuda/matvec_stream.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

// Of one row and one row of x; sum is over all columns.
__device__ void write_result(const Params& p, const Part& part, uint32_t row, uint32_t n, float sum,
                             float squares) {
  if (row >= part.w.rows || n >= p.batch) return;
  if (p.norm) sum *= rsqrtf(squares * p.inverse_cols + p.norm_eps);
  if (part.bias != nullptr) sum += part.bias[row];
  float* out = part.out + n * part.out_stride + row;
  *out = part.accumulate ? *out + sum : sum;
}

// An output of a round.
struct Output {
  uint32_t n, row;

  __device__ Output(const Params& p, const Part& part, uint32_t first_tile, uint32_t index) {
    const uint32_t group = index / kTileRows, slot = group * p.inverse_batch >> 16;
    n = group - slot * p.batch;
    row = (first_tile + slot * part.clusters) * kTileRows + index % kTileRows;
  }
};

__device__ float warps_sum(const Place& place, const float* first, uint32_t stride) {
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t warp = 0; warp < place.members; ++warp) sum += first[warp * stride];
  return sum;
}

// Adds up what the warps have, in all blocks of the cluster.
__device__ void finish_round(const Params& p, const Part& part, const Place& place, Shared& shared,
                             const RoundSums& sums, uint32_t first_tile, uint32_t parity) {
  const uint32_t outputs = p.round_tiles * p.batch * kTileRows;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < outputs; i += blockDim.x) {
    const float sum = warps_sum(place, sums.of_warp(parity, 0) + i, sums.outputs());
    if (p.cluster_size > 1) {
      sums.of_block(parity)[i] = sum;
      continue;
    }
    const Output out(p, part, first_tile, i);
    const float squares = p.norm ? warps_sum(place, &shared.squares[0][out.n], kMatvecBatch) : 0.0f;
    write_result(p, part, out.row, out.n, sum, squares);
  }
  if (p.cluster_size == 1) return;
  if (p.norm && threadIdx.x < p.batch && first_tile == place.cluster) {
    shared.totals[threadIdx.x] = warps_sum(place, &shared.squares[0][threadIdx.x], kMatvecBatch);
  }
  __syncwarp();
  cluster_barrier();
  for (uint32_t i = threadIdx.x * p.cluster_size + place.block; i < outputs;
       i += blockDim.x * p.cluster_size) {
    const Output out(p, part, first_tile, i);
    float sum = 0.0f, squares = 0.0f;
    for (uint32_t block = 0; block < p.cluster_size; ++block) {
      sum += load_remote(sums.of_block(parity) + i, block);
      if (p.norm) squares += load_remote(&shared.totals[out.n], block);
    }
    write_result(p, part, out.row, out.n, sum, squares);
  }
}

// P: Products or ProductsOfOne.
template <class F, class P>
__device__ void multiply_tiles(const Params& p, const Part& part, const Place& place,
                               WeightStream<F>& weights, Shared& shared, unsigned char* memory) {
  const RoundSums round(p, memory);
  P products(part, p.batch, memory);
  uint32_t parity = 0, tile = place.cluster;
  while (tile < part.w.tiles) {
    const uint32_t first_tile = tile;
    float* sums = round.of_warp(parity, threadIdx.x / 32);
    for (uint32_t i = 0; i < p.round_tiles && tile < part.w.tiles; ++i) {
      products.reset();
      for (uint32_t read = place.begin; read < place.end; ++read) {
        const auto loaded = products.load(weights.wait());
        weights.fetch();
        products.add(loaded, read - place.first);
      }
      if (place.begin < place.end) products.store(sums, p.batch);
      sums += p.batch * kTileRows;
      tile += part.clusters;
    }
    finish_round(p, part, place, shared, round, first_tile, parity);
    parity ^= 1;
  }
  if (p.cluster_size > 1) cluster_barrier();  // nobody reads this block any more
}

struct AnyFormat {};

// Warps of a block, and blocks for which a multiprocessor has registers.
template <class F>
constexpr uint32_t kBlockWarps = block_warps(F::kValue);
template <>
constexpr uint32_t kBlockWarps<AnyFormat> = kWarps;
template <class F>
constexpr uint32_t kBlocks = std::is_same_v<F, AnyFormat> ? 1 : 2;

// F: the format of all parts, or AnyFormat. alone: there is one row of x.
template <class F, bool alone>
__global__ __launch_bounds__(kBlockWarps<F> * 32,
                             kBlocks<F>) void matvec_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  allow_next_kernel();
  const uint32_t cluster = blockIdx.x >> p.cluster_bits;
  uint32_t index = 0;
  while (index + 1 < p.count && cluster >= p.parts[index + 1].first_cluster) ++index;
  const Part& part = p.parts[index];
  const Place place(part, p.cluster_bits);
  const auto run = [&](auto format) {
    using Own = decltype(format);
    WeightStream<Own> weights(
        part, place,
        memory + sizeof(Shared) + RoundSums::bytes(p) + threadIdx.x / 32 * part.ring_bytes);
    wait_for_kernels_before();
    stage_input<Own>(p, part, place, shared, memory);
    using P = std::conditional_t<alone, ProductsOfOne<Own>, Products<Own>>;
    multiply_tiles<Own, P>(p, part, place, weights, shared, memory);
  };
  if constexpr (std::is_same_v<F, AnyFormat>) {
    with_format(part.w.type, run);
  } else {
    run(F{});
  }
}

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda

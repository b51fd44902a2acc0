// Prefill attention for every tensor core since Ampere, after FlashAttention-2 (Dao 2023): a warp
// computes 16 query rows, blocks of keys come through two buffers.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/prefill_rows.cuh"
#include "kernels/cuda/prefill_scales.cuh"

namespace reprise::kernels::cuda::prefill {

template <KvType type, int D>
struct MmaShape {
  using T = Operand<type>;
  static constexpr KvType kType = type;
  static constexpr int kHeadDim = D, kWarps = 4, kThreads = kWarps * 32, kRows = kWarps * 16;
  static constexpr int kKeys = D > 128 ? 32 : 64;
  static constexpr bool kFp8 = type == KvType::kFP8;
  static constexpr uint32_t kTileBytes = tile_bytes(type, D);
  static constexpr uint32_t kBlockBytes = kKeys / kPageTokens * kTileBytes;
};

// A block of keys and values in f16, and the scales of its tokens.
template <typename S>
struct WidenedBlock {
  alignas(128) unsigned char k[S::kKeys * S::kHeadDim * 2];
  alignas(128) unsigned char v[S::kKeys * S::kHeadDim * 2];
  float k_scales[S::kKeys], v_scales[S::kKeys];
};
struct NoBlock {};

template <typename S>
struct MmaShared {
  alignas(128) unsigned char q[S::kRows * S::kHeadDim * 2];
  alignas(128) unsigned char k[2][S::kBlockBytes];  // as pages hold them
  alignas(128) unsigned char v[2][S::kBlockBytes];
  std::conditional_t<S::kFp8, WidenedBlock<S>, NoBlock> widened;
};

template <typename S>
__device__ void fetch_block(const Params& p, const Tile& tile, int32_t first, unsigned char* k,
                            unsigned char* v) {
  for (uint32_t page = 0; page < S::kKeys / kPageTokens; ++page) {
    const auto nth = first / static_cast<int32_t>(kPageTokens) + static_cast<int32_t>(page);
    const unsigned char* from = p.kv + tile.kv_tile(p, tile.page_id(p, nth), 0) * S::kTileBytes;
    for (uint32_t i = threadIdx.x * 16; i < S::kTileBytes; i += S::kThreads * 16) {
      copy_16_bytes(k + page * S::kTileBytes + i, from + i);
      copy_16_bytes(v + page * S::kTileBytes + i, from + S::kTileBytes + i);
    }
  }
  end_copy_group();
}

// Fills shared.widened from a fetched block.
template <typename S>
__device__ void widen_block(const Tile& tile, int32_t first, MmaShared<S>& shared, uint32_t stage) {
  constexpr uint32_t D = S::kHeadDim, kF16Bytes = kPageTokens * D * 2;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (uint32_t i = warp; i < S::kKeys / kPageTokens * 2; i += S::kWarps) {
    const uint32_t page = i / 2;
    const bool keys = i % 2 == 0;
    const unsigned char* codes = (keys ? shared.k : shared.v)[stage] + page * S::kTileBytes;
    widen_tile<D>(codes, (keys ? shared.widened.k : shared.widened.v) + page * kF16Bytes);
    if (lane >= kPageTokens) continue;
    const auto nth = first / static_cast<int32_t>(kPageTokens) + static_cast<int32_t>(page);
    float* scales = keys ? shared.widened.k_scales : shared.widened.v_scales;
    scales[page * kPageTokens + lane] = seen_scale<D>(tile, nth, codes, lane);
  }
  __syncthreads();
}

// Where the products find a block.
struct Block {
  const unsigned char *k, *v;
  const float *k_scales, *v_scales;
};

template <typename S>
__device__ Block ready_block(const Tile& tile, int32_t first, MmaShared<S>& shared,
                             uint32_t stage) {
  if constexpr (S::kFp8) {
    widen_block<S>(tile, first, shared, stage);
    const auto& widened = shared.widened;
    return {widened.k, widened.v, widened.k_scales, widened.v_scales};
  } else {
    return {shared.k[stage], shared.v[stage], nullptr, nullptr};
  }
}

// x = Q K^T of 16 query rows; q: their address.
template <typename S, int N>
__device__ void multiply_keys(uint32_t q, uint32_t first_row, uint32_t k, float (&x)[N][4]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < N; ++j) x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0.0f;
#pragma unroll
  for (uint32_t step = 0; step < S::kHeadDim / 16; ++step) {
    uint32_t queries[4];
    load_matrices(queries,
                  q + tile_offset(S::kHeadDim, first_row + lane % 16, 2 * step + lane / 16));
#pragma unroll
    for (uint32_t j = 0; j < N; j += 2) {
      uint32_t keys[4];
      const uint32_t key = j * 8 + lane % 8 + lane / 16 * 8;
      load_matrices(keys, k + tile_offset(S::kHeadDim, key, 2 * step + lane / 8 % 2));
      multiply<typename S::T>(x[j], queries, {keys[0], keys[1]});
      multiply<typename S::T>(x[j + 1], queries, {keys[2], keys[3]});
    }
  }
}

// sums += weights V.
template <typename S, int N, int kSteps>
__device__ void multiply_values(const uint32_t (&weights)[kSteps][4], uint32_t v,
                                float (&sums)[N][4]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t step = 0; step < kSteps; ++step) {
    const uint32_t key = step * 16 + lane % 16;
#pragma unroll
    for (uint32_t j = 0; j < N; j += 2) {
      uint32_t values[4];
      load_transposed(values, v + tile_offset(S::kHeadDim, key, j + lane / 16));
      multiply<typename S::T>(sums[j], weights[step], {values[0], values[1]});
      multiply<typename S::T>(sums[j + 1], weights[step], {values[2], values[3]});
    }
  }
}

template <typename S>
__global__ __launch_bounds__(S::kThreads) void mma_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  MmaShared<S>& shared = *reinterpret_cast<MmaShared<S>*>(memory);
  const Tile tile = TileFinder(p).find<S::kRows, S::kKeys>(blockIdx.x);
  if (!tile.exists) return;
  if (tile.empty()) return tile.leave_out(p, threadIdx.x, S::kThreads);
  const int32_t begin = tile.key_begin / S::kKeys * S::kKeys;
  int32_t first = (tile.key_end - 1) / S::kKeys * S::kKeys;
  load_queries<typename S::T, S::kHeadDim, S::kRows>(p, tile, shared.q, threadIdx.x, S::kThreads);
  fetch_block<S>(p, tile, first, shared.k[0], shared.v[0]);
  const uint32_t first_row = threadIdx.x / 32 * 16;
  RowPair rows(p, tile, tile.begin + first_row);
  BlockScales<S::kType> scales;
  float sums[S::kHeadDim / 8][4] = {};
  for (uint32_t stage = 0; first >= begin; first -= S::kKeys, stage ^= 1) {
    if (first > begin) {
      fetch_block<S>(p, tile, first - S::kKeys, shared.k[stage ^ 1], shared.v[stage ^ 1]);
      wait_for_copy_groups<1>();
    } else {
      wait_for_copy_groups<0>();
    }
    __syncthreads();
    const Block block = ready_block<S>(tile, first, shared, stage);
    float x[S::kKeys / 8][4], factor[2];
    multiply_keys<S>(shared_address(shared.q), first_row, shared_address(block.k), x);
    scales.scale_products(block.k_scales, x);
    const bool moved = rows.weigh(p, first, x, factor);
    if (scales.scale_weights(block.v_scales, x, moved, factor)) scale_rows(sums, factor);
    uint32_t weights[S::kKeys / 16][4];
    pack_weights<typename S::T>(x, weights);
    multiply_values<S>(weights, shared_address(block.v), sums);
    __syncthreads();
  }
  rows.write(p, sums, scales.unit());
}

}  // namespace reprise::kernels::cuda::prefill

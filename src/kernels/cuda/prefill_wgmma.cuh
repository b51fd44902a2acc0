// Prefill attention on Hopper, after FlashAttention-3 (Shah et al. 2024): one warpgroup fetches,
// others compute 64 query rows each. Blocks stay resident and draw tiles. Products of a warpgroup
// run while the others do their softmax, in turn; and while it does its own, since the products
// with the keys of a block are issued together with those of the values of the block before.
#pragma once

#include "kernels/cuda/prefill_rows.cuh"
#include "kernels/cuda/prefill_wgmma_fetch.cuh"

namespace reprise::kernels::cuda::prefill {

// A warpgroup that computes: its 64 rows of every tile.
template <typename S>
class Warpgroup {
 public:
  using T = typename S::T;
  static constexpr int D = S::kHeadDim;

  __device__ Warpgroup(const Params& p, WgmmaShared<S>& shared, uint32_t group)
      : p_(p), shared_(shared), group_(group) {
    if (group == S::kGroups - 1) pass_turn();
  }

  __device__ void compute_tiles() {
    for (Cursor slot;; ++slot.count) {
      const uint32_t i = slot.template place<S::kSlots>();
      barrier_wait(&shared_.q_full[i], slot.template parity<S::kSlots>());
      const Tile& tile = shared_.tiles[i];
      if (!tile.exists) return;
      compute_tile(tile, i);
    }
  }

 private:
  __device__ void compute_tile(const Tile& tile, uint32_t slot) {
    const uint32_t warp = threadIdx.x / 32 % 4;
    RowPair rows(p_, tile, tile.begin + group_ * 64 + warp * 16);
    BlockScales<S::kType> scales;
    const int32_t first = first_block<S>(tile);
    int32_t block = last_block<S>(tile);
    const uint64_t q = rows_operand<D>(shared_address(shared_.q[slot]) + group_ * 64 * D * 2);
    float sums[D / 8][4] = {}, x[S::kKeys / 8][4], factor[2];
    uint32_t weights[S::kKeys / 16][4];

    Cursor stage = stage_;
    await_keys(stage);
    wgmma_fence();
    multiply_keys(q, stage, x);
    wgmma_commit();
    wgmma_wait<0>();
    hold(x);
    scales.scale_products(key_scales(stage), x);
    release_keys(stage);
    const bool first_moved = rows.weigh(p_, block * S::kKeys, x, factor);
    await_values(stage);
    scales.scale_weights(value_scales(stage), x, first_moved, factor);
    pack_weights<T>(x, weights);
    while (--block >= first) {
      const Cursor next{stage.count + 1};
      await_keys(next);
      await_turn();
      hold(sums);
      hold(weights);
      wgmma_fence();
      multiply_keys(q, next, x);
      wgmma_commit();
      multiply_values(weights, stage, sums);
      wgmma_commit();
      pass_turn();
      wgmma_wait<1>();
      hold(x);
      scales.scale_products(key_scales(next), x);
      release_keys(next);
      bool moved = rows.weigh(p_, block * S::kKeys, x, factor);
      hold(x);
      await_values(next);  // a branch: the compiler does not move the softmax after the next wait
      moved = scales.scale_weights(value_scales(next), x, moved, factor);
      hold(x);
      wgmma_wait<0>();
      hold(sums);
      hold(weights);
      release_values(stage);
      if (moved) scale_rows(sums, factor);
      pack_weights<T>(x, weights);
      stage = next;
    }
    barrier_arrive(&shared_.tile_empty[slot]);
    wgmma_fence();
    multiply_values(weights, stage, sums);
    wgmma_commit();
    wgmma_wait<0>();
    hold(sums);
    release_values(stage);
    stage_.count = stage.count + 1;
    rows.write(p_, sums, scales.unit());
  }

  // x = Q K^T.
  __device__ void multiply_keys(uint64_t q, Cursor stage, float (&x)[S::kKeys / 8][4]) const {
    const uint64_t k = rows_operand<D>(shared_address(shared_.k[key_place(stage)]));
#pragma unroll
    for (uint32_t step = 0; step < D / 16; ++step) {
      const uint64_t offset = rows_operand_step(step);
      wgmma<T>(x, q + offset, k + offset, step > 0);
    }
  }

  // sums += weights V.
  __device__ void multiply_values(const uint32_t (&weights)[S::kKeys / 16][4], Cursor stage,
                                  float (&sums)[D / 8][4]) const {
    const uint64_t v = columns_operand<D>(shared_address(shared_.v[value_place(stage)]));
#pragma unroll
    for (uint32_t step = 0; step < S::kKeys / 16; ++step) {
      wgmma<T>(sums, weights[step], v + columns_operand_step<D>(step));
    }
  }

  __device__ static uint32_t key_place(Cursor stage) {
    return stage.template place<S::kKeyStages>();
  }
  __device__ static uint32_t value_place(Cursor stage) {
    return stage.template place<S::kValueStages>();
  }
  __device__ void await_keys(Cursor stage) const {
    barrier_wait(&shared_.k_full[key_place(stage)], stage.template parity<S::kKeyStages>());
  }
  __device__ void await_values(Cursor stage) const {
    barrier_wait(&shared_.v_full[value_place(stage)], stage.template parity<S::kValueStages>());
  }
  __device__ const float* key_scales(Cursor stage) const {
    if constexpr (!S::kFp8)
      return nullptr;
    else
      return shared_.fp8.k_scales[key_place(stage)];
  }
  __device__ const float* value_scales(Cursor stage) const {
    if constexpr (!S::kFp8)
      return nullptr;
    else
      return shared_.fp8.v_scales[value_place(stage)];
  }
  __device__ void release_keys(Cursor stage) const { release(&shared_.k_empty[key_place(stage)]); }
  __device__ void release_values(Cursor stage) const {
    release(&shared_.v_empty[value_place(stage)]);
  }

  __device__ static void release(uint64_t* empty) {
    if (S::kFp8 || threadIdx.x % 32 == 0) barrier_arrive(empty);
  }

  // Warpgroups issue their products in turn.
  __device__ void await_turn() const { wait_named(kTurn + group_, 256); }
  __device__ void pass_turn() const { arrive_named(kTurn + (group_ + 1) % S::kGroups, 256); }

  const Params& p_;
  WgmmaShared<S>& shared_;
  uint32_t group_;
  Cursor stage_;
};

template <typename S>
__global__ __launch_bounds__(S::kThreads, 1) void wgmma_kernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  WgmmaShared<S>& shared = *reinterpret_cast<WgmmaShared<S>*>(memory);
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  const uint32_t group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (group < S::kFetchGroups) {
    give_registers<S::kFetchRegisters>();
    if (threadIdx.x >= S::kFetchers) {
      load_tiles(p, shared, threadIdx.x - S::kFetchers);
    } else if constexpr (S::kFp8) {
      const uint32_t warp = threadIdx.x / 32;
      if (warp < S::kKeyWarps) {
        Widener<S, false>(p, shared, warp).run();
      } else {
        Widener<S, true>(p, shared, warp - S::kKeyWarps).run();
      }
    } else {
      fetch(p, shared, threadIdx.x);
    }
  } else {
    take_registers<S::kComputeRegisters>();
    Warpgroup<S>(p, shared, group - S::kFetchGroups).compute_tiles();
  }
#else
  __trap();
#endif
}

}  // namespace reprise::kernels::cuda::prefill

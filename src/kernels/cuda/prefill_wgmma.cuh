// Prefill attention on Hopper, after FlashAttention-3 (Shah et al. 2024): one warpgroup fetches,
// others compute 64 query rows each. Blocks stay resident and draw tiles. Products of a warpgroup
// run while the others do their softmax, in turn; and while it does its own, since the products
// with the keys of a block are issued together with those of the values of the block before.
#pragma once

#include "kernels/cuda/prefill_rows.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace reprise::kernels::cuda::prefill {

// kSlots: tiles whose queries are in shared memory. Values of a block are read later than its keys,
// hence more stages.
template <typename Element, int D, int kGroups_>
struct WgmmaShape {
  using T = Element;
  static constexpr int kHeadDim = D, kGroups = kGroups_;  // groups: warpgroups that compute
  static constexpr int kRows = kGroups * 64, kThreads = (kGroups + 1) * 128;
  static constexpr int kKeys = D > 128 ? 64 : 128, kSlots = D > 128 ? 1 : 2;
  static constexpr int kKeyStages = D == 64 ? 4 : 2, kValueStages = D == 64 ? 4 : 3;
  static constexpr int kFetchRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kComputeRegisters = kGroups == 2 ? 232 : 160;
  static constexpr uint32_t kTileBytes = kPageTokens * D * 2, kBlockBytes = kKeys * D * 2;
};

// *_full: written, to be read; *_empty: read, to be written anew.
template <typename S>
struct WgmmaShared {
  alignas(1024) unsigned char q[S::kSlots][S::kRows * S::kHeadDim * 2];
  alignas(1024) unsigned char k[S::kKeyStages][S::kBlockBytes];
  alignas(1024) unsigned char v[S::kValueStages][S::kBlockBytes];
  Tile tiles[S::kSlots];
  uint64_t tile_known[S::kSlots], q_full[S::kSlots], tile_empty[S::kSlots];
  uint64_t k_full[S::kKeyStages], k_empty[S::kKeyStages];
  uint64_t v_full[S::kValueStages], v_empty[S::kValueStages];
};

inline constexpr uint32_t kQueryLoaders = 96;              // threads
enum NamedBarrier : uint32_t { kLoaders = 1, kTurn = 2 };  // kTurn + g: of warpgroup g

// Position in a ring of n places, and the parity of its barriers.
struct Cursor {
  uint32_t count = 0;

  template <int n>
  __device__ uint32_t place() const {
    return count % n;
  }
  template <int n>
  __device__ uint32_t parity() const {
    return count / n & 1;
  }
};

template <typename S>
__device__ int32_t first_block(const Tile& tile) {
  return tile.key_begin / S::kKeys;
}
template <typename S>
__device__ int32_t last_block(const Tile& tile) {
  return (tile.key_end - 1) / S::kKeys;
}

template <typename S>
__device__ void init_barriers(WgmmaShared<S>& shared) {
  constexpr uint32_t kWarps = S::kGroups * 4;
  for (int i = 0; i < S::kSlots; ++i) {
    barrier_init(&shared.tile_known[i], 1);
    barrier_init(&shared.q_full[i], kQueryLoaders);
    barrier_init(&shared.tile_empty[i], (kWarps + 1) * 32);
  }
  for (int i = 0; i < S::kKeyStages; ++i) {
    barrier_init(&shared.k_full[i], 1);
    barrier_init(&shared.k_empty[i], kWarps);
  }
  for (int i = 0; i < S::kValueStages; ++i) {
    barrier_init(&shared.v_full[i], 1);
    barrier_init(&shared.v_empty[i], kWarps);
  }
  publish_barriers();
}

// Three warps draw tiles, one ahead of those who compute, and load their queries.
template <typename S>
__device__ void load_tiles(const Params& p, WgmmaShared<S>& shared, uint32_t thread) {
  TileFinder finder(p);
  for (Cursor slot;; ++slot.count) {
    const uint32_t i = slot.template place<S::kSlots>();
    barrier_wait(&shared.tile_empty[i], slot.template parity<S::kSlots>() ^ 1);
    if (thread == 0) {
      const uint32_t id = atomicAdd(p.next_tile, 1);
      shared.tiles[i] = finder.template find<S::kRows>(id);
      // Each block draws one id beyond the tiles; nobody draws after the last of them.
      if (!shared.tiles[i].exists && id == finder.tiles() + gridDim.x - 1) *p.next_tile = 0;
      barrier_arrive(&shared.tile_known[i]);
    }
    wait_named(kLoaders, kQueryLoaders);
    const Tile& tile = shared.tiles[i];
    const bool exists = tile.exists;
    if (exists) {
      load_queries<typename S::T, S::kHeadDim, S::kRows>(p, tile, shared.q[i], thread,
                                                         kQueryLoaders);
      wait_for_copies();
      publish_shared();
    }
    barrier_arrive(&shared.q_full[i]);
    if (!exists) return;
  }
}

// One warp fetches keys and values; a lane copies a page's tile.
template <typename S>
__device__ void fetch(const Params& p, WgmmaShared<S>& shared, uint32_t lane) {
  constexpr uint32_t kPages = S::kKeys / kPageTokens;
  Cursor stage;
  for (Cursor slot;; ++slot.count) {
    const uint32_t i = slot.template place<S::kSlots>();
    barrier_wait(&shared.tile_known[i], slot.template parity<S::kSlots>());
    const Tile tile = shared.tiles[i];
    barrier_arrive(&shared.tile_empty[i]);
    if (!tile.exists) return;
    for (int32_t block = last_block<S>(tile); block >= first_block<S>(tile); --block) {
      const auto page = block * static_cast<int32_t>(kPages) + static_cast<int32_t>(lane);
      const unsigned char* from = p.kv;
      if (lane < kPages) from += tile.kv_tile(p, page, 0) * S::kTileBytes;
      const uint32_t k = stage.template place<S::kKeyStages>();
      barrier_wait(&shared.k_empty[k], stage.template parity<S::kKeyStages>() ^ 1);
      if (lane == 0) barrier_expect(&shared.k_full[k], S::kBlockBytes);
      __syncwarp();
      if (lane < kPages) {
        bulk_copy(shared.k[k] + lane * S::kTileBytes, from, S::kTileBytes, &shared.k_full[k]);
      }
      const uint32_t v = stage.template place<S::kValueStages>();
      barrier_wait(&shared.v_empty[v], stage.template parity<S::kValueStages>() ^ 1);
      if (lane == 0) barrier_expect(&shared.v_full[v], S::kBlockBytes);
      __syncwarp();
      if (lane < kPages) {
        bulk_copy(shared.v[v] + lane * S::kTileBytes, from + S::kTileBytes, S::kTileBytes,
                  &shared.v_full[v]);
      }
      ++stage.count;
    }
  }
}

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
    release_keys(stage);
    rows.weigh(p_, block * S::kKeys, x, factor);
    pack_weights<T>(x, weights);
    await_values(stage);
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
      release_keys(next);
      const bool moved = rows.weigh(p_, block * S::kKeys, x, factor);
      hold(x);
      await_values(next);  // a branch: the compiler does not move the softmax after the next wait
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
    rows.write(p_, sums);
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
  __device__ void release_keys(Cursor stage) const { release(&shared_.k_empty[key_place(stage)]); }
  __device__ void release_values(Cursor stage) const {
    release(&shared_.v_empty[value_place(stage)]);
  }

  __device__ static void release(uint64_t* empty) {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
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
  if (group == 0) {
    give_registers<S::kFetchRegisters>();
    if (threadIdx.x < 32) {
      fetch(p, shared, threadIdx.x);
    } else {
      load_tiles(p, shared, threadIdx.x - 32);
    }
  } else {
    take_registers<S::kComputeRegisters>();
    Warpgroup<S>(p, shared, group - 1).compute_tiles();
  }
#else
  __trap();
#endif
}

}  // namespace reprise::kernels::cuda::prefill

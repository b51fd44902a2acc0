// What the warps of the Hopper prefill kernel share, and those that fetch for the others: one warp
// copies pages, three load queries. Pages of e4m3 codes take seven warps, which also widen them to
// f16, and one loads queries.
#pragma once

#include "kernels/cuda/prefill_scales.cuh"
#include "kernels/cuda/prefill_tiles.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace reprise::kernels::cuda::prefill {

// kSlots: tiles whose queries are in shared memory. Values of a block are read later than its keys,
// hence more stages.
template <KvType type, int D, int kGroups_>
struct WgmmaShape {
  using T = Operand<type>;
  static constexpr KvType kType = type;
  static constexpr int kHeadDim = D, kGroups = kGroups_;  // groups: warpgroups that compute
  static constexpr int kRows = kGroups * 64;
  static constexpr bool kFp8 = type == KvType::kFP8;
  static constexpr int kKeys = D > 128 ? 64 : 128;
  static constexpr int kSlots = D > 128 ? 1 : 2;
  static constexpr int kKeyStages = D == 64 ? 4 : 2, kValueStages = D == 64 ? 4 : kFp8 ? 2 : 3;
  static constexpr uint32_t kFetchGroups = kFp8 && D <= 128 ? 2 : 1;
  static constexpr uint32_t kFetchWarps = kFp8 ? kFetchGroups * 4 - 1 : 1;
  static constexpr uint32_t kKeyWarps = kFetchWarps / 2;  // of those that widen
  static constexpr int kFetchRegisters = kFp8 ? 56 : kGroups == 2 ? 40 : 32;
  static constexpr int kComputeRegisters = kFetchGroups == 2 ? 200
                                           : kFp8            ? 224
                                           : kGroups == 2    ? 232
                                                             : 160;
  static constexpr uint32_t kQueryLoaders = kFetchGroups * 128 - kFetchWarps * 32;  // threads
  static constexpr uint32_t kFetchers = kFetchWarps * 32;
  static constexpr int kThreads = (kGroups + kFetchGroups) * 128;
  static constexpr uint32_t kPages = kKeys / kPageTokens;  // of a block
  static constexpr uint32_t kTileBytes = tile_bytes(type, D), kBlockBytes = kKeys * D * 2;
};

// Tiles of codes that each fetching warp has on the way, and scales of the blocks made of them.
template <typename S>
struct CodesShared {
  static constexpr int kTiles = S::kHeadDim == 64 ? 8 : 2;

  alignas(128) unsigned char codes[S::kFetchWarps][kTiles][S::kTileBytes];
  float k_scales[S::kKeyStages][S::kKeys], v_scales[S::kValueStages][S::kKeys];
  uint64_t full[S::kFetchWarps][kTiles];
};
struct NoCodes {};

// *_full: written, to be read; *_empty: read, to be written anew.
template <typename S>
struct WgmmaShared {
  alignas(1024) unsigned char q[S::kSlots][S::kRows * S::kHeadDim * 2];
  alignas(1024) unsigned char k[S::kKeyStages][S::kBlockBytes];
  alignas(1024) unsigned char v[S::kValueStages][S::kBlockBytes];
  std::conditional_t<S::kFp8, CodesShared<S>, NoCodes> fp8;
  Tile tiles[S::kSlots];
  uint64_t tile_known[S::kSlots], q_full[S::kSlots], tile_empty[S::kSlots];
  uint64_t k_full[S::kKeyStages], k_empty[S::kKeyStages];
  uint64_t v_full[S::kValueStages], v_empty[S::kValueStages];
};

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
  // Lanes write and read scales, so that each says for itself that it is done.
  constexpr uint32_t kLanes = S::kFp8 ? 32 : 1, kWarps = S::kGroups * 4;
  constexpr uint32_t kParts = S::kFp8 ? S::kPages * kLanes : 1;
  for (int i = 0; i < S::kSlots; ++i) {
    barrier_init(&shared.tile_known[i], 1);
    barrier_init(&shared.q_full[i], S::kQueryLoaders);
    barrier_init(&shared.tile_empty[i], (kWarps + S::kFetchWarps) * 32);
  }
  for (int i = 0; i < S::kKeyStages; ++i) {
    barrier_init(&shared.k_full[i], kParts);
    barrier_init(&shared.k_empty[i], kWarps * kLanes);
  }
  for (int i = 0; i < S::kValueStages; ++i) {
    barrier_init(&shared.v_full[i], kParts);
    barrier_init(&shared.v_empty[i], kWarps * kLanes);
  }
  if constexpr (S::kFp8) {
    for (auto& warp : shared.fp8.full) {
      for (uint64_t& full : warp) barrier_init(&full, 1);
    }
  }
  publish_barriers();
}

// Some warps draw tiles, one ahead of those who compute, and load their queries.
template <typename S>
__device__ void load_tiles(const Params& p, WgmmaShared<S>& shared, uint32_t thread) {
  TileFinder finder(p);
  for (Cursor slot;; ++slot.count) {
    const uint32_t i = slot.template place<S::kSlots>();
    barrier_wait(&shared.tile_empty[i], slot.template parity<S::kSlots>() ^ 1);
    if (thread == 0) {
      Tile& tile = shared.tiles[i];
      uint32_t id;
      while (true) {
        id = atomicAdd(p.next_tile, 1);
        tile = finder.template find<S::kRows, S::kKeys>(id);
        if (!tile.exists || !tile.empty()) break;
        tile.leave_out(p, 0, 1);
      }
      // Each block draws one id beyond the tiles; nobody draws after the last of them.
      if (!tile.exists && id == finder.ids() + gridDim.x - 1) *p.next_tile = 0;
      barrier_arrive(&shared.tile_known[i]);
    }
    wait_named(kLoaders, S::kQueryLoaders);
    const Tile& tile = shared.tiles[i];
    const bool exists = tile.exists;
    if (exists) {
      load_queries<typename S::T, S::kHeadDim, S::kRows>(p, tile, shared.q[i], thread,
                                                         S::kQueryLoaders);
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
  constexpr uint32_t kPages = S::kPages;
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
      if (lane < kPages) from += tile.kv_tile(p, tile.page_id(p, page), 0) * S::kTileBytes;
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

// One of the warps that fetch tiles of codes, of K or of V, and widen them. Those of a block, and
// then of the block before it, are dealt to the warps of a team in turn.
template <typename S, bool kValues>
class Widener {
 public:
  static constexpr uint32_t kTeam = kValues ? S::kFetchWarps - S::kKeyWarps : S::kKeyWarps;

  // member: of the team.
  __device__ Widener(const Params& p, WgmmaShared<S>& shared, uint32_t member)
      : p_(p), shared_(shared), codes_(kValues ? member + S::kKeyWarps : member), member_(member) {}

  __device__ void run() {
    for (Cursor slot;; ++slot.count) {
      const uint32_t i = slot.template place<S::kSlots>();
      barrier_wait(&shared_.tile_known[i], slot.template parity<S::kSlots>());
      const Tile tile = shared_.tiles[i];
      barrier_arrive(&shared_.tile_empty[i]);
      if (!tile.exists) return;
      const auto blocks = static_cast<uint32_t>(last_block<S>(tile) - first_block<S>(tile) + 1);
      items_ = blocks * S::kPages;
      next_ = member_;
      known_ = 0;
      for (int n = 0; n < kAhead; ++n) fetch(tile);
      for (uint32_t item = member_; item < items_; item += kTeam) {
        widen(tile, item);
        fetch(tile);
      }
      stage_.count += blocks;
    }
  }

 private:
  static constexpr int kAhead = CodesShared<S>::kTiles;
  static constexpr int kStages = kValues ? S::kValueStages : S::kKeyStages;

  // Page of the tile's keys that an item is of.
  __device__ static int32_t page_of(const Tile& tile, uint32_t item) {
    const auto before = static_cast<int32_t>(item / S::kPages);
    return (last_block<S>(tile) - before) * static_cast<int32_t>(S::kPages) +
           static_cast<int32_t>(item % S::kPages);
  }

  // Ids of the pages of the next items of this warp, one a lane.
  __device__ void find(const Tile& tile) {
    const uint32_t item = next_ + threadIdx.x % 32 * kTeam;
    if (item < items_) ids_ = tile.page_id(p_, page_of(tile, item));
    known_ = 32;
  }

  __device__ void fetch(const Tile& tile) {
    __syncwarp();
    if (next_ >= items_) return;
    if (known_ == 0) find(tile);
    const uint32_t id = __shfl_sync(~0u, ids_, 32 - known_--);
    const uint32_t place = fetched_.template place<kAhead>();
    if (threadIdx.x % 32 == 0) {
      const unsigned char* from = p_.kv + tile.kv_tile(p_, id, kValues ? 1 : 0) * S::kTileBytes;
      uint64_t* full = &shared_.fp8.full[codes_][place];
      barrier_expect(full, S::kTileBytes);
      bulk_copy(shared_.fp8.codes[codes_][place], from, S::kTileBytes, full);
    }
    ++fetched_.count;
    next_ += kTeam;
  }

  __device__ void widen(const Tile& tile, uint32_t item) {
    constexpr uint32_t D = S::kHeadDim;
    const Cursor stage{stage_.count + item / S::kPages};
    const uint32_t i = stage.template place<kStages>(), parity = stage.template parity<kStages>();
    const uint32_t lane = threadIdx.x % 32, place = widened_.template place<kAhead>();
    const uint32_t page = item % S::kPages;
    const unsigned char* codes = shared_.fp8.codes[codes_][place];
    barrier_wait(kValues ? &shared_.v_empty[i] : &shared_.k_empty[i], parity ^ 1);
    barrier_wait(&shared_.fp8.full[codes_][place], widened_.template parity<kAhead>());
    ++widened_.count;
    widen_tile<D>(codes, (kValues ? shared_.v[i] : shared_.k[i]) + page * (kPageTokens * D * 2));
    if (lane < kPageTokens) {
      float* scales = kValues ? shared_.fp8.v_scales[i] : shared_.fp8.k_scales[i];
      const float scale = seen_scale<D>(tile, page_of(tile, item), codes, lane);
      scales[page * kPageTokens + lane] = scale;
    }
    publish_shared();
    barrier_arrive(kValues ? &shared_.v_full[i] : &shared_.k_full[i]);
  }

  const Params& p_;
  WgmmaShared<S>& shared_;
  uint32_t codes_, member_;           // codes: which of the shared ones
  uint32_t items_ = 0, next_ = 0;     // of the tile; next: to be fetched
  uint32_t ids_ = 0, known_ = 0;      // page of an item of each lane; how many are not yet used
  Cursor stage_, fetched_, widened_;  // stage: of the tile's first item
};

}  // namespace reprise::kernels::cuda::prefill

// Which rows the blocks of a prefill kernel compute, and loading their queries.
#pragma once

#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/paged_prefill.h"

namespace reprise::kernels::cuda::prefill {

struct Params {
  const unsigned char* kv;
  const PrefillRows* sequences;
  const uint32_t* pages;
  uint32_t batch, capacity, n_head, n_kv_head, group;  // group: query heads per KV head
  uint32_t cached_keys;                                // of one KV head, that the L2 cache keeps
  const __nv_bfloat16* q;
  const int32_t* positions;  // [rows], or null
  float scale, soft_cap;
  int32_t window, first_key_bound, end_key_bound, lag, align;
  void* out;
  bool f32_out;
  float* lse;
  uint32_t* next_tile;  // zero between calls
  // Keys of a tile are shared out among so many, with out in F32 and lse of each, part_rows apart;
  // these begin with first_row.
  uint32_t parts = 1, first_row = 0;
  size_t part_rows = 0;  // [rows, n_head]

  // Keys that the row at a position sees.
  __device__ int32_t first_key(int32_t position) const {
    return max(first_key_bound, window > 0 ? position - window + 1 : 0);
  }
  __device__ int32_t end_key(int32_t position) const {
    const int32_t end = position + 1 - lag;
    return min(align > 1 ? end / align * align : end, end_key_bound);
  }
};

// Query rows that a block computes together: of one sequence and KV head, in order of position and,
// within a position, of query head.
struct Tile {
  PrefillRows rows;  // of the sequence
  uint32_t sequence, kv_head, part;
  uint32_t begin, end;         // of rows.count * group query rows
  int32_t key_begin, key_end;  // keys that any of them sees, of the part
  bool exists;

  // There are fewer blocks of keys than parts.
  __device__ bool empty() const { return key_begin >= key_end; }

  __device__ int32_t position(const Params& p, uint32_t row) const {
    const uint32_t nth = row / p.group;
    if (p.positions != nullptr) return p.positions[rows.first + nth];
    return rows.position + static_cast<int32_t>(nth);
  }
  // Index of a query row in [rows, n_head].
  __device__ size_t index(const Params& p, uint32_t row) const {
    return size_t{rows.first + row / p.group} * p.n_head + kv_head * p.group + row % p.group;
  }
  // The same in out and lse.
  __device__ size_t out_index(const Params& p, uint32_t row) const {
    return index(p, row) - size_t{p.first_row} * p.n_head + part * p.part_rows;
  }
  // Of an empty part: its rows have no weight.
  __device__ void leave_out(const Params& p, uint32_t thread, uint32_t threads) const {
    for (uint32_t row = begin + thread; row < end; row += threads) {
      p.lse[out_index(p, row)] = -INFINITY;
    }
  }
  // The page that holds the keys from 16 * page on; one that no row sees is replaced by one that
  // some row does.
  __device__ uint32_t page_id(const Params& p, int32_t page) const {
    constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
    page = min(max(page, key_begin / kTokens), (key_end - 1) / kTokens);
    return p.pages[size_t{sequence} * p.capacity + static_cast<uint32_t>(page)];
  }
  // Its tile of K (0) or V (1).
  __device__ size_t kv_tile(const Params& p, uint32_t id, uint32_t which) const {
    return (size_t{id} * p.n_kv_head + kv_head) * 2 + which;
  }
};

// Numbers the tiles of all sequences. Of one sequence, the last rows come first, since they see
// most keys; of a long one, head after head, for blocks to find each other's keys in the L2 cache.
class TileFinder {
 public:
  __device__ explicit TileFinder(const Params& p) : p_(p) {}

  // Ids of successive calls ascend. kKeys: of a block, which no part shares with another one.
  template <int kRows, int kKeys>
  __device__ Tile find(uint32_t id) {
    Tile tile{};
    tile.part = id % p_.parts;
    id /= p_.parts;
    for (; sequence_ < p_.batch; ++sequence_) {
      tile.rows = p_.sequences[sequence_];
      const uint32_t rows = tile.rows.count * p_.group, row_tiles = (rows + kRows - 1) / kRows;
      if (id - before_ < row_tiles * p_.n_kv_head) {
        const uint32_t nth = id - before_;
        const bool in_turn = exceeds_cache(tile, rows);
        tile.sequence = sequence_;
        tile.kv_head = in_turn ? nth / row_tiles : nth % p_.n_kv_head;
        tile.begin = (row_tiles - 1 - (in_turn ? nth % row_tiles : nth / p_.n_kv_head)) * kRows;
        tile.end = min(tile.begin + kRows, rows);
        tile.key_begin = p_.first_key(tile.position(p_, tile.begin));
        tile.key_end = p_.end_key(tile.position(p_, tile.end - 1));
        tile.exists = true;
        if (p_.parts > 1) take_part<kKeys>(tile);
        return tile;
      }
      before_ += row_tiles * p_.n_kv_head;
    }
    return tile;
  }

  // All ids, once find() found none.
  __device__ uint32_t ids() const { return before_ * p_.parts; }

 private:
  template <int kKeys>
  __device__ void take_part(Tile& tile) const {
    const int32_t first = tile.key_begin / kKeys, blocks = (tile.key_end - 1) / kKeys - first + 1;
    const auto bound = [&](uint32_t part) {
      return (first + static_cast<int32_t>(static_cast<uint32_t>(blocks) * part / p_.parts)) *
             kKeys;
    };
    tile.key_end = min(tile.key_end, bound(tile.part + 1));
    tile.key_begin = max(tile.key_begin, bound(tile.part));
  }

  // rows: query rows of the tile's sequence, at least 1.
  __device__ bool exceeds_cache(const Tile& tile, uint32_t rows) const {
    const int32_t keys = p_.end_key(tile.position(p_, rows - 1));
    return static_cast<uint32_t>(keys) > p_.cached_keys / p_.n_kv_head;
  }

  const Params& p_;
  uint32_t sequence_ = 0, before_ = 0;
};

// Copies the queries of a tile to shared memory, as type T; rows past its end repeat the last one.
// Some are still on their way on return.
template <typename T, int D, int kRows>
__device__ void load_queries(const Params& p, const Tile& tile, unsigned char* to, uint32_t thread,
                             uint32_t threads) {
  constexpr uint32_t kChunks = D / 8;
#pragma unroll 1  // registers are few
  for (uint32_t i = thread; i < kRows * kChunks; i += threads) {
    const uint32_t row = i / kChunks, chunk = i % kChunks;
    const size_t index = tile.index(p, min(tile.begin + row, tile.end - 1));
    copy_16_bytes(to + tile_offset(D, row, chunk), p.q + index * D + chunk * 8);
  }
  if constexpr (!std::is_same_v<T, __nv_bfloat16>) {
    wait_for_copies();
#pragma unroll 2
    for (uint32_t i = thread; i < kRows * kChunks; i += threads) {
      auto* place = reinterpret_cast<uint4*>(to + tile_offset(D, i / kChunks, i % kChunks));
      uint4 values = *place;
      for (uint32_t* two : {&values.x, &values.y, &values.z, &values.w}) {
        const auto pair = reinterpret_cast<const __nv_bfloat162&>(*two);
        *two = pack<T>(__low2float(pair), __high2float(pair));
      }
      *place = values;
    }
  }
}

}  // namespace reprise::kernels::cuda::prefill

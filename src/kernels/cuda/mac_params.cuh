// What the parts of MAC-Attention's kernel know.
#pragma once

#include "kernels/cuda/divider.h"
#include "kernels/cuda/mac.h"
#include "kernels/cuda/mac_messages.cuh"
#include "kernels/cuda/mac_shares.cuh"
#include "kernels/cuda/paged_decode_params.cuh"

namespace reprise::kernels::cuda {

namespace mac {

constexpr uint32_t kMaxGroup = 16;

// The nearest entry of a share of a ring: squared distance, then how far back it lies, then whether
// it is risky: the least is the nearest and the newest of equally near ones.
constexpr uint64_t kNothing = ~uint64_t{0};

__device__ inline uint64_t candidate(float distance2, int32_t gap, bool risky) {
  return static_cast<uint64_t>(__float_as_uint(distance2)) << 32 |
         (static_cast<uint32_t>(gap) << 1 | (risky ? 1 : 0));
}
__device__ inline float distance2_of(uint64_t candidate) {
  return __uint_as_float(static_cast<uint32_t>(candidate >> 32));
}
__device__ inline int32_t gap_of(uint64_t candidate) {
  return static_cast<int32_t>(static_cast<uint32_t>(candidate) >> 1);
}
__device__ inline bool is_risky(uint64_t candidate) { return (candidate & 1) != 0; }

struct Params : decode::Params {
  const uint32_t* page_table;  // [batch, capacity]
  uint32_t capacity;
  const int32_t* positions;  // [batch]
  const uint32_t* rings;     // [batch]
  const float* q_plain;
  MacRings ring;
  MacRules rules;
  Message* candidates;  // [pairs + blocks, group] of pair and block: row pair + block
  // Of rows of partial results: bases and totals, sums of two neighbouring dimensions.
  Message *piece_weights, *piece_sums;  // [rows, group], [rows, group, head_dim / 2]
  unsigned long long* barrier;          // of the grid
  uint32_t blocks;                      // that compare and read
  uint32_t first_merger;                // blocks from this one on merge
  bool sparse;                          // lists name some of the keys
  const uint32_t* numbers;

  uint32_t ring_heads;            // KV heads of all layers of a ring
  uint32_t slots, units;          // slots of a ring that a block compares with at once; such units
  uint32_t chunks, fresh_chunks;  // of a pair: see mac_lists.cuh
  uint32_t chunk_pages;           // at most as many as a block has warps
  bool joins;                     // chunks of one list in a share become one piece
  Divider by_kv_head, by_group, by_units, by_chunks, by_window;
  FixedShares searches, near;  // of units and of chunks, of all pairs

  __device__ uint32_t row_of(uint32_t pair) const { return by_kv_head.quotient(pair); }
  // The ring of a pair, in units of a KV head's; number: of the sequence.
  __device__ size_t ring_of(uint32_t number, uint32_t pair) const {
    return size_t{number} * ring_heads + pair - row_of(pair) * n_kv_head;
  }
  // Of a pair's fresh or near list.
  __device__ uint32_t first_chunk(uint32_t pair, bool fresh) const {
    return pair * chunks + (fresh ? 0 : fresh_chunks);
  }
  // Keys that the result of a position leaves out begin here.
  __device__ int32_t cut(int32_t position) const {
    const int32_t past = position + 1 - rules.band;
    if (past <= 0) return 0;
    const int32_t align = rules.align;
    return (align & (align - 1)) == 0 ? past & -align : past / align * align;
  }
  // The first one whose result covers a key.
  __device__ int32_t first_position() const {
    return rules.band - 1 + (rules.sink / rules.align + 1) * rules.align;
  }
};

}  // namespace mac

}  // namespace reprise::kernels::cuda

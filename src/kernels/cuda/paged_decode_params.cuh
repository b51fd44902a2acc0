// What every part of the paged decode kernel knows.
#pragma once

#include "kernels/cuda/kv_fragments.cuh"
#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

namespace decode {

struct Params {
  const unsigned char* pages;
  KeyLists lists;
  KeyAngles angles;
  uint32_t pairs, n_kv_head, group;  // group: query heads per KV head
  uint32_t splits;                   // blocks of a pair; 0: blocks share all pages
  const float *q, *q_capped;
  uint32_t capped_pages;  // which q_capped reads
  float scale, soft_cap;
  bool known_pages;  // see PagedDecodeArgs: who reads what is not known waits before
  float* page_logs;
  bool page_peaks;
  float *out, *lse;
  // Partial results, relative to their bases: one of each block of a pair, or of the pair that a
  // block's share begins in and of the one that it ends in.
  float *part_base, *part_total;  // [2 * blocks, group]
  float* part_sums;               // [2 * blocks, group, head_dim]
  uint32_t* arrivals;             // [pairs] zero between calls

  __device__ size_t list(uint32_t pair) const {
    uint32_t row = pair / n_kv_head;
    if (lists.rows != nullptr) row = lists.rows[row];
    return lists.lists == 1 ? row : size_t{row} * n_kv_head + pair % n_kv_head;
  }
  __device__ uint32_t list_pages(uint32_t pair) const {
    return (static_cast<uint32_t>(lists.keys[list(pair)]) + kPageTokens - 1) / kPageTokens;
  }
  // The row of angles.of_pages of a page of a list.
  __device__ uint32_t angle_row(uint32_t pair, uint32_t page) const {
    if (angles.rows == nullptr) return page;
    return angles.rows[list(pair) * lists.capacity + page];
  }
  // Of the first query head of a pair; heads are lists.capacity apart.
  __device__ float* logs(uint32_t pair, uint32_t page) const {
    if (page_logs == nullptr) return nullptr;
    return page_logs + size_t{pair} * group * lists.capacity + page;
  }
  __device__ const float* queries(uint32_t page) const {
    return page < capped_pages ? q_capped : q;
  }
};

/// The kernel of a KV type; see paged_decode_kv.cu.
template <KvType type>
cudaError_t attend_with(const Params& params, uint32_t head_dim, cudaStream_t stream);

// A block's shape: warps, each with one page of its own on the way, and blocks of a multiprocessor.
// More than about 128 KiB on the way slow each other down. NT: tiles of 8 query heads. rotates:
// keys are position-free.
template <KvType type, int D, int NT, bool many_pairs, bool rotates = false>
struct Shape {
  using T = Operand<type>;
  static constexpr KvType kType = type;
  static constexpr bool kRotates = rotates;
  static constexpr int kHeadDim = D, kSteps = D / 16, kHeadTiles = NT;
  static constexpr int kBlocks = many_pairs && NT == 1 && D <= 128 ? 2 : 1;
  static constexpr int kWarps = D > 128 ? 8 / NT : NT == 1 ? 16 / kBlocks : 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr uint32_t kTileBytes = tile_bytes(type, D), kPageBytes = 2 * kTileBytes;
};

template <typename S>
struct Shared {
  alignas(128) unsigned char pages[S::kWarps][S::kPageBytes];
  uint64_t full[S::kWarps];
  float base[S::kWarps][S::kHeadTiles * 8], total[S::kWarps][S::kHeadTiles * 8];
  uint32_t scan[S::kWarps];
  uint32_t arrived;

  // What follows: [warps, group, head_dim], then [pairs + 1].
  __device__ float* sums() { return reinterpret_cast<float*>(this + 1); }
  __device__ uint32_t* first_page(uint32_t group) {
    return reinterpret_cast<uint32_t*>(sums() + S::kWarps * group * S::kHeadDim);
  }
};

// Bits of the tokens of a page that are read.
__device__ inline uint32_t seen_tokens(const Params& p, uint32_t pair, uint32_t index) {
  const size_t list = p.list(pair);
  const int32_t left = p.lists.keys[list] - static_cast<int32_t>(index * kPageTokens);
  uint32_t seen = left >= static_cast<int32_t>(kPageTokens) ? 0xffffu : (1u << left) - 1;
  if (p.lists.slots != nullptr) seen &= p.lists.slots[list * p.lists.capacity + index];
  return seen;
}

}  // namespace decode

}  // namespace reprise::kernels::cuda

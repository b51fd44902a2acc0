// What a block of the paged decode kernel does.
#pragma once

#include "kernels/cuda/paged_decode_merge.cuh"
#include "kernels/cuda/paged_decode_pages.cuh"
#include "kernels/cuda/paged_decode_params.cuh"
#include "kernels/cuda/paged_decode_warp.cuh"

namespace reprise::kernels::cuda {

namespace decode {

// No block between two that share a pair goes without a page: it would be waited for.
__device__ inline uint32_t shares(uint32_t pages) { return min(pages, gridDim.x); }

__device__ inline uint32_t share_begin(uint32_t pages, uint32_t block) {
  return static_cast<uint32_t>(static_cast<uint64_t>(pages) * block / shares(pages));
}

// The block whose share contains a page.
__device__ inline uint32_t share_of(uint32_t pages, uint32_t page) {
  auto block = static_cast<uint32_t>(static_cast<uint64_t>(page) * shares(pages) / pages);
  while (share_begin(pages, block + 1) <= page) ++block;
  return block;
}

// Blocks that a pair uses: a warp should find at least one page.
template <typename S>
__device__ inline uint32_t used_splits(const Params& p, uint32_t pages) {
  return min(p.splits, (pages + S::kWarps - 1) / S::kWarps);
}

// The pieces of a pair whose pages blocks share, and the row of this block's.
__device__ inline Pieces shared_pieces(const Params& p, const uint32_t* first_page, uint32_t pair,
                                       uint32_t begin, uint32_t* mine) {
  const uint32_t pages = first_page[p.pairs], first = first_page[pair];
  const uint32_t from = share_of(pages, first), to = share_of(pages, first_page[pair + 1] - 1);
  *mine = blockIdx.x * 2 + (begin == first ? 1 : 0);
  return {2 * from + 1, 2 * from + 2, 2, to - from + 1};
}

// Pages [begin, end) of all pairs' pages laid end to end, or of one pair when p.splits > 0.
template <typename S, typename EndedFirst>
__device__ void attend_share(const Params& p, Shared<S>& shared, uint32_t pair, uint32_t begin,
                             uint32_t end, const EndedFirst& ended_first) {
  const uint32_t* first_page = shared.first_page(p.group);
  const uint32_t warp = threadIdx.x / 32;
  uint32_t mine = begin + warp;
  PageStream<S> stream(p, first_page, pair, mine, end, shared.pages[warp], &shared.full[warp]);
  stream.fetch_first();
  Warp<S> state;
  for (uint32_t page = begin; page < end; ++pair) {
    const uint32_t pair_end = min(end, first_page[pair + 1]);
    if (pair_end == page) continue;
    state.reset();
    const float* loaded = nullptr;
    for (; mine < pair_end; mine += S::kWarps) {
      const uint32_t index = mine - first_page[pair];
      const float* q = p.queries(index);
      if (q != loaded) state.load_queries(q, p.group, pair);
      loaded = q;
      const uint32_t seen = seen_tokens(p, pair, index);
      uint32_t angles = 0;
      if constexpr (S::kRotates) angles = p.angle_row(pair, index);
      stream.wait();
      state.attend(p, shared.pages[warp], angles, seen, p.logs(pair, index));
      stream.fetch();
    }
    state.publish(p.group, shared.base[warp], shared.total[warp],
                  shared.sums() + size_t{warp} * p.group * S::kHeadDim);
    uint32_t row = blockIdx.x;
    Pieces pieces;
    if (p.splits > 0) {
      const uint32_t first = pair * p.splits;
      pieces = {first, first + 1, 1, used_splits<S>(p, first_page[pair + 1])};
    } else {
      pieces = shared_pieces(p, first_page, pair, page, &row);
    }
    if (finish_pair<S>(p, shared, pair, row, pieces)) ended_first(pair);
    page = pair_end;
  }
}

template <typename S>
__device__ void write_empty(const Params& p, uint32_t pair) {
  if (p.known_pages) wait_for_kernels_before();
  for (uint32_t i = threadIdx.x * 2; i < p.group * S::kHeadDim; i += S::kThreads * 2) {
    write_result<S::kHeadDim>(p, pair, i, {});
  }
}

template <typename S, typename EndedFirst>
__device__ void attend_part(const Params& p, Shared<S>& shared, const EndedFirst& ended_first) {
  const uint32_t pair = blockIdx.x / p.splits, part = blockIdx.x % p.splits;
  if (pair >= p.pairs) return;
  const uint32_t pages = p.list_pages(pair), parts = used_splits<S>(p, pages);
  if (pages == 0 && part == 0) write_empty<S>(p, pair);
  if (part >= parts) return;
  if (threadIdx.x == 0) {
    uint32_t* first_page = shared.first_page(p.group);
    first_page[pair] = 0;
    first_page[pair + 1] = pages;
  }
  __syncthreads();
  attend_share<S>(p, shared, pair, pages * part / parts, pages * (part + 1) / parts, ended_first);
}

// A block's part of everything. ended_first(pair), by all threads of the block that was first to
// end its part of a pair.
template <typename S, typename EndedFirst>
__device__ void attend_pairs(const Params& p, Shared<S>& shared, const EndedFirst& ended_first) {
  if (p.splits > 0) return attend_part<S>(p, shared, ended_first);
  uint32_t* first_page = shared.first_page(p.group);
  count_pages<S>(p.pairs, shared.scan, first_page,
                 [&](uint32_t pair) { return p.list_pages(pair); });
  const uint32_t pages = first_page[p.pairs];
  for (uint32_t pair = blockIdx.x; pair < p.pairs; pair += gridDim.x) {
    if (first_page[pair + 1] == first_page[pair]) write_empty<S>(p, pair);
  }
  if (blockIdx.x >= shares(pages)) return;
  const uint32_t begin = share_begin(pages, blockIdx.x), end = share_begin(pages, blockIdx.x + 1);
  attend_share<S>(p, shared, pair_of(first_page, p.pairs, begin), begin, end, ended_first);
}

}  // namespace decode

}  // namespace reprise::kernels::cuda

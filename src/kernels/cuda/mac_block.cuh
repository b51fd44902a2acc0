// What a block of MAC-Attention does. It asks for its share of the rings and of the keys that are
// read in any case (fresh and near lists) before queries are there, compares, and attends to those
// keys. Once all blocks have compared it decides as they do, and takes a share of what is left (far
// lists): a single KV head without a match occupies the whole device.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/mac_guard.cuh"
#include "kernels/cuda/mac_merge.cuh"
#include "kernels/cuda/mac_search.cuh"
#include "kernels/cuda/mac_stream.cuh"
#include "kernels/cuda/paged_decode_block.cuh"
#include "kernels/cuda/paged_decode_pages.cuh"
#include "kernels/cuda/paged_decode_warp.cuh"

namespace reprise::kernels::cuda {

namespace mac {

using decode::Warp;

// Pages of one list in a block's shares.
struct Unit {
  enum Kind { kFresh, kNear, kFar };
  uint32_t pair;
  Kind kind;
  uint32_t begin, end;  // among the block's indices
  uint32_t index;       // of the first one in its list
  uint32_t pages;
  uint32_t row;  // of the piece that comes of it
};

template <typename S>
class Block {
  static constexpr uint32_t D = S::kHeadDim;
  static constexpr int NT = S::kHeadTiles;
  using Stream = PageStream<S>;

 public:
  __device__ Block(const Params& p, decode::Shared<S>& shared, const Lists& lists, bool compares)
      : p_(p), shared_(shared), lists_(lists), barrier_{p.barrier}, compares_(compares) {}

  __device__ void run(SearchShared& searched) {
    Search<S> search(p_, lists_, searched, true);
    // Chunks go to the last blocks that read.
    share_ = blockIdx.x < p_.blocks ? p_.blocks - 1 - blockIdx.x : p_.blocks;
    first_chunk_ = p_.near.begin(share_);
    near_count_ = (p_.near.begin(share_ + 1) - first_chunk_) * S::kWarps;
    const uint32_t warp = threadIdx.x / 32;
    Stream stream({p_, lists_, first_chunk_, near_count_}, p_.pages, p_.n_kv_head, warp,
                  near_count_, shared_.pages[warp], &shared_.full[warp]);
    stream.fetch();
    wait_for_kernels_before();
    barrier_.look();
    stream.source.stored = true;
    stream.fetch();
    if (compares_) search.run(barrier_.launch());
    find_compared(p_, lists_);
    for (uint32_t at = 0; !decided_ || at < near_count_ + far_count_;) {
      Unit unit = at < near_count_ ? near_unit(at) : decided_ ? far_unit(at) : Unit{};
      const bool early = !decided_, attended = !early || goes_first(unit);
      if (attended) attend(stream, unit);
      if (early) decide_all(stream);
      if (!attended) continue;
      if (early && unit.kind == Unit::kNear) forget_reused(unit);
      finish(unit);
      at += unit.end - unit.begin;
    }
    merge();
    for (uint32_t pair = blockIdx.x; pair < p_.pairs; pair += gridDim.x) {
      if (threadIdx.x != 0 || !lists_.row(p_, pair).may_reuse(p_)) continue;
      barrier_.wait();  // every block has asked the guards
      count_step<S>(p_, lists_, pair);
    }
  }

 private:
  // What follows in a list goes with a chunk where chunks are joined.
  __device__ Unit near_unit(uint32_t at) const {
    const uint32_t number = first_chunk_ + at / S::kWarps;
    const Chunk chunk = Chunk::of(p_, lists_, number);
    const uint32_t pair = chunk.pair, first = p_.first_chunk(pair, chunk.fresh);
    uint32_t unit_end = at + S::kWarps, row = number;
    if (p_.joins) {
      const uint32_t list_end = p_.first_chunk(pair + !chunk.fresh, !chunk.fresh);
      unit_end = min(near_count_, at + (list_end - number) * S::kWarps);
      row = first + share_ - p_.near.owner(first);
    }
    uint32_t end = chunk.fresh ? lists_.row(p_, pair).fresh : lists_.row(p_, pair).near;
    if (decided_ && !chunk.fresh) end = min(end, lists_.captured_pages(pair));
    end = min(end, chunk.begin + (unit_end - at) / S::kWarps * p_.chunk_pages);
    const uint32_t pages = end - min(end, chunk.begin);
    const Unit::Kind kind = chunk.fresh ? Unit::kFresh : Unit::kNear;
    return {pair, kind, at, unit_end, chunk.begin, pages, row};
  }

  __device__ Unit far_unit(uint32_t at) {
    const uint32_t page = far_begin_ + at - near_count_;
    while (lists_.far[far_pair_ + 1] <= page) ++far_pair_;
    const uint32_t first = lists_.far[far_pair_];
    const uint32_t end = min(far_count_, lists_.far[far_pair_ + 1] - far_begin_) + near_count_;
    const uint32_t row = p_.pairs * p_.chunks + far_pair_ + blockIdx.x;
    return {far_pair_, Unit::kFar, at, end, page - first, end - at, row};
  }

  // Whether it may be attended to before it is known which of its pages are read: a result is then
  // reused for all of a page or nothing, and a warp has one.
  __device__ bool goes_first(const Unit& unit) const {
    const bool one_each = unit.end == S::kWarps && p_.rules.align % kPageTokens == 0;
    return unit.end > 0 && (unit.kind == Unit::kFresh || one_each);
  }

  // Once all blocks have compared, if any does. All threads.
  __device__ void decide_all(Stream& stream) {
    barrier_.arrive();
    if (decide(p_, lists_, compares_, barrier_.launch())) {
      decode::count_pages<S>(p_.pairs, shared_.scan, lists_.far,
                             [&](uint32_t pair) { return lists_.far_pages(p_, pair); });
      constexpr uint32_t kLeastShare = 32;  // of few pages fewer pieces are merged sooner
      const uint32_t pages = lists_.far[p_.pairs];
      far_ = Shares(pages, min(p_.blocks, max(1u, pages / kLeastShare)));
      far_begin_ = far_.begin(blockIdx.x);
      far_count_ = far_.begin(blockIdx.x + 1) - far_begin_;
      find_far_blocks();
    }
    decided_ = true;
    stream.source.decided = true;
    if (far_count_ == 0) return;
    far_pair_ = decode::pair_of(lists_.far, p_.pairs, far_begin_);
    stream.source.far_begin = far_begin_;
    stream.source.far_pair = far_pair_;
    stream.extend(near_count_ + far_count_);
  }

  __device__ void find_far_blocks() {
    for (uint32_t pair = threadIdx.x; pair < p_.pairs; pair += S::kThreads) {
      const uint32_t begin = lists_.far[pair], end = lists_.far[pair + 1];
      if (begin < end) lists_.blocks[pair] = far_.owner(begin) | far_.owner(end - 1) << 16;
    }
    __syncthreads();
  }

  // Which page of the sequence the i-th of a list is.
  __device__ uint32_t number_of(const Unit& unit, const Row& row, uint32_t i) const {
    if (unit.kind == Unit::kFresh) return row.fresh_page(i);
    if (unit.kind == Unit::kNear) return row.captured_page(i);
    if (p_.sparse) return __ldcg(p_.numbers + lists_.entry(p_, unit.pair, i));
    return row.captured_page(row.near + i);
  }

  __device__ void attend(Stream& stream, const Unit& unit) {
    const uint32_t warp = threadIdx.x / 32;
    const Row& row = lists_.row(p_, unit.pair);
    const bool fresh = unit.kind == Unit::kFresh;
    int32_t begins[NT][2];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const uint32_t head = min(Warp<S>::head(n, side), p_.group - 1);
        begins[n][side] = fresh       ? row.cut
                          : !decided_ ? row.sink
                                      : lists_.begin(p_, unit.pair, head, unit.kind == Unit::kFar);
      }
    }
    Warp<S> state;
    state.reset();
    uint32_t at = unit.begin + (warp + S::kWarps - unit.begin % S::kWarps) % S::kWarps;
    if (at - unit.begin < unit.pages) state.load_queries(p_.q, p_.group, unit.pair);
    for (; at < unit.end; at += S::kWarps) {
      const uint32_t i = unit.index + at - unit.begin;
      const uint32_t page = number_of(unit, row, i);
      const int32_t end = fresh ? row.position + 1 : row.cut;
      const uint32_t sinks = fresh ? tokens_of(page, 0, row.sink) : 0;
      uint32_t by_head[NT][2];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          by_head[n][side] = tokens_of(page, begins[n][side], end) | sinks;
        }
      }
      stream.wait();
      if (at - unit.begin < unit.pages) {
        state.attend(p_, shared_.pages[warp], page, tokens_of(page, 0, row.position + 1),
                     [&](int n, int side) { return by_head[n][side]; });
      }
      stream.release();
      stream.fetch();
    }
    state.publish(p_.group, shared_.base[warp], shared_.total[warp],
                  shared_.sums() + size_t{warp} * p_.group * D);
    __syncthreads();
  }

  // Forgets the pages of a chunk that went first for which a head reuses a result. All threads.
  __device__ void forget_reused(const Unit& unit) {
    const uint32_t warp = p_.by_group.quotient(threadIdx.x);
    if (warp < unit.pages) {
      const uint32_t head = threadIdx.x - warp * p_.group;
      const uint32_t page = lists_.row(p_, unit.pair).captured_page(unit.index + warp);
      const int32_t begin = lists_.begin(p_, unit.pair, head, false);
      if (begin >= static_cast<int32_t>((page + 1) * kPageTokens)) {
        shared_.base[warp][head] = -INFINITY;
      }
    }
    __syncthreads();
  }

  // Pieces of a list of a pair of which so many pages are read.
  __device__ uint32_t pieces_of(uint32_t first_chunk, uint32_t pages) const {
    const uint32_t chunks = (pages + p_.chunk_pages - 1) / p_.chunk_pages;
    if (!p_.joins || chunks == 0) return chunks;
    return p_.near.owner(first_chunk + chunks - 1) - p_.near.owner(first_chunk) + 1;
  }

  __device__ PairPieces pieces(uint32_t pair) const {
    const Row& row = lists_.row(p_, pair);
    PairPieces all;
    all.fresh_row = p_.first_chunk(pair, true);
    all.near_row = p_.first_chunk(pair, false);
    all.fresh = pieces_of(all.fresh_row, row.fresh);
    all.near = pieces_of(all.near_row, min(row.near, lists_.captured_pages(pair)));
    const uint32_t from = lists_.blocks[pair] & 0xffff, to = lists_.blocks[pair] >> 16;
    all.far = lists_.far_pages(p_, pair) > 0 ? to - from + 1 : 0;
    all.far_row = p_.pairs * p_.chunks + pair + from;
    return all;
  }

  // Once the warps have published, and it is decided what is read. All threads.
  __device__ void finish(const Unit& unit) {
    const bool near = unit.kind == Unit::kNear;
    if (unit.pages == 0 || (near && unit.index >= lists_.captured_pages(unit.pair))) return;
    const uint32_t launch = barrier_.launch();
    for (uint32_t i = threadIdx.x * 2; i < p_.group * D; i += S::kThreads * 2) {
      send_piece<D>(p_, launch, unit.row, i, decode::merge_warps<S>(p_, shared_, i));
    }
    __syncthreads();
  }

  // Pairs of which this block merges the pieces.
  __device__ void merge() {
    if (blockIdx.x < p_.first_merger) return;
    const uint32_t step = gridDim.x - p_.first_merger;
    for (uint32_t pair = blockIdx.x - p_.first_merger; pair < p_.pairs; pair += step) {
      if (lists_.row(p_, pair).position < 0) {
        decode::write_empty<S>(p_, pair);
      } else {
        complete<S>(p_, lists_, pieces(pair), barrier_.launch(), pair,
                    reinterpret_cast<float2*>(shared_.sums()));
      }
      __syncthreads();
    }
  }

  const Params& p_;
  decode::Shared<S>& shared_;
  const Lists& lists_;
  GridBarrier barrier_;
  bool decided_ = false, compares_;  // compares_: any block
  Shares far_;
  uint32_t share_ = 0, first_chunk_ = 0, near_count_ = 0;
  uint32_t far_begin_ = 0, far_count_ = 0, far_pair_ = 0;
};

}  // namespace mac

}  // namespace reprise::kernels::cuda

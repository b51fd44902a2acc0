// Streams the pages of a block's shares.
#pragma once

#include "kernels/cuda/mac_lists.cuh"

namespace reprise::kernels::cuda {

namespace mac {

// The pages of a block's shares of chunks and of far lists, for PageStream. Chunks have kWarps
// indices each.
template <typename S>
struct SharePages {
  const Params& p;
  const Lists& lists;
  uint32_t first_chunk, near_count;  // near_count: indices of chunks
  uint32_t far_begin = 0, far_pair = 0;
  bool decided = false, stored = false;  // stored: keys of the rows themselves
  uint32_t pair = 0;
  bool is_wanted = false, holds_row = false;

  __device__ uint32_t page(uint32_t index) {
    uint32_t number = 0;
    if (index < near_count) {
      const Chunk chunk = Chunk::of(p, lists, first_chunk + index / S::kWarps);
      const uint32_t at = chunk.begin + index % S::kWarps;
      pair = chunk.pair;
      const Row& row = lists.row(p, pair);
      number = chunk.fresh ? row.fresh_page(at) : row.captured_page(at);
      is_wanted = at < chunk.end && (chunk.fresh || !decided || at < lists.captured_pages(pair));
      holds_row = number == Row::page_of(row.position);
    } else {
      const uint32_t page = far_begin + index - near_count;
      while (lists.far[far_pair + 1] <= page) ++far_pair;
      pair = far_pair;
      const Row& row = lists.row(p, pair);
      is_wanted = true;
      holds_row = false;
      const uint32_t at = page - lists.far[pair];
      if (p.sparse) return __ldcg(p.lists.pages + lists.entry(p, pair, at));
      number = row.captured_page(row.near + at);
    }
    return is_wanted ? __ldcg(p.page_table + size_t{p.row_of(pair)} * p.capacity + number) : 0;
  }
  __device__ uint32_t kv_head() const { return pair - p.row_of(pair) * p.n_kv_head; }
  __device__ bool wanted() const { return is_wanted; }
  __device__ bool ready() const { return stored || !is_wanted || !holds_row; }
};

// The pages that one warp takes, in turn with others: one is on its way, and the id of the next.
// All lanes call.
template <typename S>
class PageStream {
 public:
  // full: a barrier of one arrival, unused where there are no bulk copies. Indices [index, end).
  __device__ PageStream(const SharePages<S>& source, const unsigned char* pages, uint32_t n_kv_head,
                        uint32_t index, uint32_t end, unsigned char* buffer, uint64_t* full)
      : source(source),
        pages_(pages),
        n_kv_head_(n_kv_head),
        buffer_(buffer),
        full_(full),
        next_(index),
        end_(end) {
    find();
  }

  // Asks for a page, if there is one and nobody reads the last one any more.
  __device__ void fetch() {
    __syncwarp();
    if (on_the_way_ || next_ >= end_ || !source.ready()) return;
    copy(source.wanted() ? S::kPageBytes : 0);
    on_the_way_ = true;
    next_ += S::kWarps;
    find();
  }

  // More pages at the end.
  __device__ void extend(uint32_t end) {
    const bool found = next_ < end_;
    end_ = end;
    if (!found) find();
    fetch();
  }

  // Until what was asked for is there.
  __device__ void wait() {
#if __CUDA_ARCH__ >= 900
    barrier_wait(full_, parity_);
    parity_ ^= 1;
#else
    wait_for_copies();
    __syncwarp();
#endif
  }

  // Has read it.
  __device__ void release() { on_the_way_ = false; }

  SharePages<S> source;

 private:
  __device__ void find() {
    if (next_ < end_) id_ = source.page(next_);
  }

  __device__ void copy(uint32_t bytes) {
    const size_t tile = size_t{id_} * n_kv_head_ + source.kv_head();
    const unsigned char* from = pages_ + tile * S::kPageBytes;
    const uint32_t lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      barrier_expect(full_, bytes);
      if (bytes > 0) bulk_copy_once(buffer_, from, bytes, full_);
    }
#else
    for (uint32_t at = lane * 16; at < bytes; at += 32 * 16) {
      copy_16_bytes_once(buffer_ + at, from + at);
    }
#endif
  }

  const unsigned char* pages_;
  uint32_t n_kv_head_;
  unsigned char* buffer_;
  uint64_t* full_;
  uint32_t next_, end_, id_ = 0, parity_ = 0;
  bool on_the_way_ = false;
};

}  // namespace mac

}  // namespace reprise::kernels::cuda

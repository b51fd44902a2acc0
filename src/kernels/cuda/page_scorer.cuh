// Bounds of q.k for pages, from their largest and smallest keys.
#pragma once

#include <cmath>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/page_rows.cuh"

namespace reprise::kernels::cuda {

__device__ inline uint32_t positive(uint32_t two) {
  const __nv_bfloat162 part =
      __hmax2(reinterpret_cast<const __nv_bfloat162&>(two), __nv_bfloat162{});
  return reinterpret_cast<const uint32_t&>(part);
}

__device__ inline uint32_t negative(uint32_t two) {
  const __nv_bfloat162 part =
      __hmin2(reinterpret_cast<const __nv_bfloat162&>(two), __nv_bfloat162{});
  return reinterpret_cast<const uint32_t&>(part);
}

// Bounds of 16 pages times queries: the positive parts of q times the largest keys plus the
// negative parts times the smallest. Lane l has pages l / 4 and l / 4 + 8, and of every 32
// dimensions the eight from l % 4 * 8 on, in whatever order products sum them up.
// kTiles: tiles of eight query heads.
template <uint32_t D, uint32_t kTiles>
struct PageScorer {
  static constexpr uint32_t kSteps = D / 32;

  // Of the lane's two pages.
  struct Bounds {
    uint4 high[kSteps][2], low[kSteps][2];

    // pages: [2][D] each.
    __device__ void load(const __nv_bfloat16* const (&pages)[2]) {
#pragma unroll
      for (uint32_t step = 0; step < kSteps; ++step) {
        for (uint32_t page = 0; page < 2; ++page) {
          const __nv_bfloat16* from = pages[page] + dim(step);
          high[step][page] = __ldcs(reinterpret_cast<const uint4*>(from));
          low[step][page] = __ldcs(reinterpret_cast<const uint4*>(from + D));
        }
      }
    }
  };

  uint4 q[kTiles][kSteps];

  __device__ static uint32_t dim(uint32_t step) { return step * 32 + threadIdx.x % 4 * 8; }

  // q: [group, D]. Places beyond the group repeat its last head, which changes no maximum.
  __device__ void load(const __nv_bfloat16* from, uint32_t group) {
    for (uint32_t tile = 0; tile < kTiles; ++tile) {
      const uint32_t head = min(tile * 8 + threadIdx.x % 32 / 4, group - 1);
#pragma unroll
      for (uint32_t step = 0; step < kSteps; ++step) {
        q[tile][step] = *reinterpret_cast<const uint4*>(from + head * D + dim(step));
      }
    }
  }

  __device__ static void add(float (&sums)[4], const uint4 (&two)[2], uint4 q) {
    multiply<__nv_bfloat16>(sums, {two[0].x, two[1].x, two[0].y, two[1].y}, {q.x, q.y});
    multiply<__nv_bfloat16>(sums, {two[0].z, two[1].z, two[0].w, two[1].w}, {q.z, q.w});
  }

  // Every lane of a quad gets the scores of its pages.
  __device__ void score(const Bounds& bounds, float (&best)[2]) const {
    float sums[kTiles][4] = {};
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
#pragma unroll
      for (uint32_t tile = 0; tile < kTiles; ++tile) {
        const uint4 both = q[tile][step];
        add(sums[tile], bounds.high[step],
            {positive(both.x), positive(both.y), positive(both.z), positive(both.w)});
        add(sums[tile], bounds.low[step],
            {negative(both.x), negative(both.y), negative(both.z), negative(both.w)});
      }
    }
    for (uint32_t page = 0; page < 2; ++page) {
      best[page] = fmaxf(sums[0][2 * page], sums[0][2 * page + 1]);
      if constexpr (kTiles > 1) {
        best[page] = fmaxf(best[page], fmaxf(sums[1][2 * page], sums[1][2 * page + 1]));
      }
      best[page] = fmaxf(best[page], __shfl_xor_sync(~0u, best[page], 1));
      best[page] = fmaxf(best[page], __shfl_xor_sync(~0u, best[page], 2));
    }
  }
};

// Some pages of a row and KV head: the calling warp takes the 16 from first on, then those step
// further, and so on, up to end. Bounds are older than queries: the first ones may come before.
template <uint32_t D, uint32_t kTiles>
class PageScores {
 public:
  __device__ PageScores(const PageScoreArgs& a, uint32_t row, uint32_t head, uint32_t first,
                        uint32_t step, uint32_t end)
      : a_(a), row_(row), head_(head), page_(first), step_(step), end_(end) {
    load(page_);
  }

  // take(page, score), of all of them.
  template <typename Take>
  __device__ void for_each(const Take& take) {
    if (page_ >= end_) return;
    const uint32_t lane = threadIdx.x % 32, group = a_.n_head / a_.n_kv_head;
    Scorer scorer;
    scorer.load(a_.q + (size_t{row_} * a_.n_head + head_ * group) * D, group);
#pragma unroll 1
    for (; page_ < end_; page_ += step_) {
      float best[2];
      scorer.score(next_, best);
      load(page_ + step_);
      const uint32_t mine = page_ + lane / 4 + 8 * (lane % 4);
      if (lane % 4 < 2 && mine < end_) take(mine, lane % 4 == 0 ? best[0] : best[1]);
    }
  }

 private:
  using Scorer = PageScorer<D, kTiles>;

  __device__ void load(uint32_t page) {
    if (page >= end_) return;
    const uint32_t* table = a_.rows.pages + size_t{row_} * a_.rows.capacity;
    const __nv_bfloat16* pages[2];
    for (uint32_t half = 0; half < 2; ++half) {
      const size_t id = table[min(page + threadIdx.x % 32 / 4 + 8 * half, end_ - 1)];
      pages[half] = a_.bounds + (id * a_.n_kv_head + head_) * 2 * D;
    }
    next_.load(pages);
  }

  const PageScoreArgs& a_;
  uint32_t row_, head_, page_, step_, end_;
  typename Scorer::Bounds next_;
};

}  // namespace reprise::kernels::cuda

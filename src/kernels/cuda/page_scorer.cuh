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
// kTiles: tiles of eight query heads; kLoaded: steps whose loads go out at once.
template <uint32_t D, uint32_t kTiles, uint32_t kLoaded>
struct PageScorer {
  static constexpr uint32_t kSteps = D / 32;
  static_assert(kSteps % kLoaded == 0);

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

  __device__ static void add(float (&sums)[4], const uint4& first, const uint4& second, uint4 q) {
    multiply<__nv_bfloat16>(sums, {first.x, second.x, first.y, second.y}, {q.x, q.y});
    multiply<__nv_bfloat16>(sums, {first.z, second.z, first.w, second.w}, {q.z, q.w});
  }

  // pages: the bounds of this lane's two, [2][D] each. Every lane of a quad gets their scores.
  __device__ void score(const __nv_bfloat16* const (&pages)[2], float (&best)[2]) const {
    float sums[kTiles][4] = {};
#pragma unroll
    for (uint32_t start = 0; start < kSteps; start += kLoaded) {
      uint4 high[kLoaded][2], low[kLoaded][2];
#pragma unroll
      for (uint32_t i = 0; i < kLoaded; ++i) {
        for (uint32_t page = 0; page < 2; ++page) {
          const __nv_bfloat16* from = pages[page] + dim(start + i);
          high[i][page] = __ldcs(reinterpret_cast<const uint4*>(from));
          low[i][page] = __ldcs(reinterpret_cast<const uint4*>(from + D));
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < kLoaded; ++i) {
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; ++tile) {
          const uint4 both = q[tile][start + i];
          add(sums[tile], high[i][0], high[i][1],
              {positive(both.x), positive(both.y), positive(both.z), positive(both.w)});
          add(sums[tile], low[i][0], low[i][1],
              {negative(both.x), negative(both.y), negative(both.z), negative(both.w)});
        }
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

// Scores of a row's full pages for one KV head. The calling warp takes the 16 pages from first on,
// then those step pages further, and so on.
template <uint32_t D, uint32_t kTiles, uint32_t kLoaded>
__device__ void score_some_pages(const PageScoreArgs& a, uint32_t row, uint32_t head,
                                 uint32_t first, uint32_t step) {
  const uint32_t pages = full_pages(a.rows, row), group = a.n_head / a.n_kv_head;
  if (first >= pages) return;
  PageScorer<D, kTiles, kLoaded> scorer;
  scorer.load(a.q + (size_t{row} * a.n_head + head * group) * D, group);
  const uint32_t* table = a.rows.pages + size_t{row} * a.rows.capacity;
  float* scores = a.scores + (size_t{row} * a.n_kv_head + head) * a.rows.capacity;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t page = first; page < pages; page += step) {
    const __nv_bfloat16* bounds[2];
    for (uint32_t half = 0; half < 2; ++half) {
      const size_t id = table[min(page + lane / 4 + 8 * half, pages - 1)];
      bounds[half] = a.bounds + (id * a.n_kv_head + head) * 2 * D;
    }
    float best[2];
    scorer.score(bounds, best);
    const uint32_t mine = page + lane / 4 + 8 * (lane % 4);
    if (lane % 4 < 2 && mine < pages) scores[mine] = lane % 4 == 0 ? best[0] : best[1];
  }
}

}  // namespace reprise::kernels::cuda

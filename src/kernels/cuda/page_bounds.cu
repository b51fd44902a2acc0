#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_store.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/page_rows.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kBoundWarps = 4, kScoreWarps = 4;
constexpr uint32_t kScoreBlocks = 8;  // of a multiprocessor, while there is work

// Dimensions dim and dim + 1 of a token as they are stored.
template <KvType type>
__device__ float2 load_two(const unsigned char* tile, uint32_t head_dim, uint32_t token,
                           uint32_t dim) {
  const unsigned char* from = tile + element_offset(type, head_dim, token, dim);
  if constexpr (type == KvType::kBF16) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
  } else if constexpr (type == KvType::kF16) {
    return __half22float2(*reinterpret_cast<const __half2*>(from));
  } else {
    const auto codes = *reinterpret_cast<const __nv_fp8x2_storage_t*>(from);
    const float2 two = __half22float2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
    const float scale = *reinterpret_cast<const float*>(tile + fp8_scale_offset(head_dim, token));
    return {two.x * scale, two.y * scale};
  }
}

// Of a KV head's page, the unit-th of all. A warp calls.
template <KvType type>
__device__ void bound_page(const PagedKv& kv, size_t unit, __nv_bfloat16* bounds) {
  const uint32_t head_dim = kv.head_dim;
  const unsigned char* tile =
      static_cast<const unsigned char*>(kv.pages) + unit * 2 * tile_bytes(type, head_dim);
  __nv_bfloat16* to = bounds + unit * 2 * head_dim;
  for (uint32_t dim = threadIdx.x % 32 * 2; dim < head_dim; dim += 64) {
    float2 high = {-INFINITY, -INFINITY}, low = {INFINITY, INFINITY};
#pragma unroll
    for (uint32_t token = 0; token < kPageTokens; ++token) {
      const float2 two = load_two<type>(tile, head_dim, token, dim);
      high = {fmaxf(high.x, two.x), fmaxf(high.y, two.y)};
      low = {fminf(low.x, two.x), fminf(low.y, two.y)};
    }
    *reinterpret_cast<__nv_bfloat162*>(to + dim) =
        __nv_bfloat162(__float2bfloat16_ru(high.x), __float2bfloat16_ru(high.y));
    *reinterpret_cast<__nv_bfloat162*>(to + head_dim + dim) =
        __nv_bfloat162(__float2bfloat16_rd(low.x), __float2bfloat16_rd(low.y));
  }
}

// A warp per KV head of a row.
template <KvType type>
__global__ __launch_bounds__(kBoundWarps *
                             32) void update_kernel(const __grid_constant__ PageBoundsArgs a) {
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t n_kv_head = a.kv.n_kv_head;
  const size_t unit = size_t{blockIdx.x} * kBoundWarps + threadIdx.x / 32;
  const size_t row = unit / n_kv_head;
  if (row >= a.rows) return;
  const int32_t position = a.positions[row];
  const uint32_t page = static_cast<uint32_t>(position) / kPageTokens;
  if (position < 0 || page >= a.capacity) return;
  if (static_cast<uint32_t>(position) % kPageTokens != kPageTokens - 1) return;
  const size_t id = a.pages[size_t{a.sequences[row]} * a.capacity + page];
  bound_page<type>(a.kv, id * n_kv_head + unit % n_kv_head, a.bounds);
}

// A warp per KV head of a page.
template <KvType type>
__global__ __launch_bounds__(kBoundWarps * 32) void all_kernel(PagedKv kv, uint64_t units,
                                                               __nv_bfloat16* bounds) {
  allow_next_kernel();
  wait_for_kernels_before();
  const size_t unit = size_t{blockIdx.x} * kBoundWarps + threadIdx.x / 32;
  if (unit < units) bound_page<type>(kv, unit, bounds);
}

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
template <uint32_t D, uint32_t kTiles>  // tiles of eight query heads
struct PageScorer {
  static constexpr uint32_t kSteps = D / 32;
  static constexpr uint32_t kLoaded = kSteps < 4 ? kSteps : 4;  // steps whose loads go out at once
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
          high[i][page] = *reinterpret_cast<const uint4*>(from);
          low[i][page] = *reinterpret_cast<const uint4*>(from + D);
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

// A sequence's KV head has so many splits as blocks, whose warps take 16 pages in turn.
// Neighbouring blocks read the heads of the same pages.
template <uint32_t D, uint32_t kTiles>
__global__ __launch_bounds__(kScoreWarps * 32, D* kTiles <= 128 ? 4 : 3) void score_kernel(
    const __grid_constant__ PageScoreArgs a, uint32_t splits) {
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t head = blockIdx.x % a.n_kv_head, split = blockIdx.x / a.n_kv_head % splits;
  const uint32_t row = blockIdx.x / a.n_kv_head / splits, group = a.n_head / a.n_kv_head;
  if (!has_own_page(a.rows, row)) return;
  const uint32_t pages = full_pages(a.rows, row);
  const uint32_t first = (split * kScoreWarps + threadIdx.x / 32) * kPageTokens;
  if (pages < a.rows.budget_pages || first >= pages) return;
  PageScorer<D, kTiles> scorer;
  scorer.load(a.q + (size_t{row} * a.n_head + head * group) * D, group);
  const uint32_t* table = a.rows.pages + size_t{row} * a.rows.capacity;
  float* scores = a.scores + (size_t{row} * a.n_kv_head + head) * a.rows.capacity;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t page = first; page < pages; page += splits * kScoreWarps * kPageTokens) {
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

// Whether there are kernels for such pages.
bool is_served(const PagedKv& kv) {
  return kv.head_dim <= 256 && kv.head_dim % (kv.type == KvType::kFP8 ? 32 : 8) == 0;
}

dim3 bound_blocks(uint64_t units) {
  return dim3(static_cast<uint32_t>((units + kBoundWarps - 1) / kBoundWarps));
}

template <uint32_t D>
cudaError_t launch_score(const PageScoreArgs& args, cudaStream_t stream) {
  int device = 0, multiprocessors = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  const cudaError_t status =
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  const uint32_t pairs = args.rows.count * args.n_kv_head;
  const uint32_t block_pages = kScoreWarps * kPageTokens;
  const uint32_t splits = std::clamp(static_cast<uint32_t>(multiprocessors) * kScoreBlocks / pairs,
                                     1u, (args.rows.capacity + block_pages - 1) / block_pages);
  const bool one_tile = args.n_head / args.n_kv_head <= 8;
  return launch_overlapped(one_tile ? score_kernel<D, 1> : score_kernel<D, 2>, dim3(pairs * splits),
                           kScoreWarps * 32, stream, args, splits);
}

}  // namespace

cudaError_t update_page_bounds(const PageBoundsArgs& args, cudaStream_t stream) {
  const uint64_t units = uint64_t{args.rows} * args.kv.n_kv_head;
  if (!is_served(args.kv)) return cudaErrorNotSupported;
  if (units == 0) return cudaSuccess;
  const auto kernel = args.kv.type == KvType::kBF16  ? update_kernel<KvType::kBF16>
                      : args.kv.type == KvType::kF16 ? update_kernel<KvType::kF16>
                                                     : update_kernel<KvType::kFP8>;
  return launch_overlapped(kernel, bound_blocks(units), kBoundWarps * 32, stream, args);
}

cudaError_t bound_all_pages(const PagedKv& kv, uint64_t pages, __nv_bfloat16* bounds,
                            cudaStream_t stream) {
  const uint64_t units = pages * kv.n_kv_head;
  if (!is_served(kv)) return cudaErrorNotSupported;
  if (units == 0) return cudaSuccess;
  const auto kernel = kv.type == KvType::kBF16  ? all_kernel<KvType::kBF16>
                      : kv.type == KvType::kF16 ? all_kernel<KvType::kF16>
                                                : all_kernel<KvType::kFP8>;
  return launch_overlapped(kernel, bound_blocks(units), kBoundWarps * 32, stream, kv, units,
                           bounds);
}

cudaError_t score_pages(const PageScoreArgs& args, cudaStream_t stream) {
  if (args.rows.count == 0 || args.rows.capacity == 0) return cudaSuccess;
  const uint32_t group = args.n_kv_head > 0 ? args.n_head / args.n_kv_head : 0;
  if (group < 1 || group > 16) return cudaErrorNotSupported;
  switch (args.head_dim) {
    case 64:
      return launch_score<64>(args, stream);
    case 96:
      return launch_score<96>(args, stream);
    case 128:
      return launch_score<128>(args, stream);
    case 256:
      return launch_score<256>(args, stream);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace reprise::kernels::cuda

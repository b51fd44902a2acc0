#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/kv_load.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/page_scorer.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kBoundWarps = 4, kScoreWarps = 4;
constexpr uint32_t kScoreBlocks = 8;  // of a multiprocessor, while there is work

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
      const float2 two = load_two(type, tile, head_dim, token, dim);
      high = {fmaxf(high.x, two.x), fmaxf(high.y, two.y)};
      low = {fminf(low.x, two.x), fminf(low.y, two.y)};
    }
    *reinterpret_cast<__nv_bfloat162*>(to + dim) =
        __nv_bfloat162(__float2bfloat16_ru(high.x), __float2bfloat16_ru(high.y));
    *reinterpret_cast<__nv_bfloat162*>(to + head_dim + dim) =
        __nv_bfloat162(__float2bfloat16_rd(low.x), __float2bfloat16_rd(low.y));
  }
}

// A warp per KV head of a row; the second dimension of the grid are layers.
template <KvType type>
__global__ __launch_bounds__(kBoundWarps *
                             32) void update_kernel(const __grid_constant__ PageBoundsArgs a) {
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t n_kv_head = a.kv.n_kv_head;
  const size_t unit = size_t{blockIdx.x} * kBoundWarps + threadIdx.x / 32;
  const size_t row = unit / n_kv_head;
  if (row >= a.rows) return;
  const int32_t stored = a.positions[row] - (a.before ? 1 : 0);
  const uint32_t page = static_cast<uint32_t>(stored) / kPageTokens;
  if (stored < 0 || page >= a.capacity) return;
  if (static_cast<uint32_t>(stored) % kPageTokens != kPageTokens - 1) return;
  const size_t sequence = size_t{blockIdx.y} * a.table_rows + a.sequences[row];
  const uint32_t id = a.pages[sequence * a.capacity + page];
  if (id == ~0u) return;  // evicted
  bound_page<type>(a.kv, size_t{id} * n_kv_head + unit % n_kv_head, a.bounds);
}

// A warp per KV head of a page.
template <KvType type>
__global__ __launch_bounds__(kBoundWarps * 32) void list_kernel(PagedKv kv, PageIds pages,
                                                                __nv_bfloat16* bounds) {
  allow_next_kernel();
  wait_for_kernels_before();
  const size_t unit = size_t{blockIdx.x} * kBoundWarps + threadIdx.x / 32;
  const size_t i = unit / kv.n_kv_head;
  if (i >= pages.count) return;
  const size_t id = pages.ids != nullptr ? pages.ids[i] : pages.first + i;
  bound_page<type>(kv, id * kv.n_kv_head + unit % kv.n_kv_head, bounds);
}

// A sequence's KV head has so many splits as blocks, whose warps take 16 pages in turn.
// Neighbouring blocks read the heads of the same pages.
template <uint32_t D, uint32_t kTiles>
__global__ __launch_bounds__(kScoreWarps * 32,
                             D > 128 ? 2
                             : D * kTiles <= 128
                                 ? 4
                                 : 3) void score_kernel(const __grid_constant__ PageScoreArgs a,
                                                        uint32_t splits) {
  allow_next_kernel();
  const uint32_t head = blockIdx.x % a.n_kv_head, split = blockIdx.x / a.n_kv_head % splits;
  const uint32_t row = blockIdx.x / a.n_kv_head / splits;
  const uint32_t warp = split * kScoreWarps + threadIdx.x / 32;
  PageScores<D, kTiles> scores(a, row, head, warp * kPageTokens, splits * kScoreWarps * kPageTokens,
                               chooses(a.rows, row) ? full_pages(a.rows, row) : 0);
  wait_for_kernels_before();
  float* out = a.scores + (size_t{row} * a.n_kv_head + head) * a.rows.capacity;
  scores.for_each([&](uint32_t page, float score) { out[page] = score; });
}

// Whether there are kernels for such pages.
bool is_served(const PagedKv& kv) {
  return kv.head_dim <= 256 && kv.head_dim % (kv.type == KvType::kFP8 ? 32 : 8) == 0;
}

dim3 bound_blocks(uint64_t units, uint32_t layers = 1) {
  return dim3(static_cast<uint32_t>((units + kBoundWarps - 1) / kBoundWarps), layers);
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
  if (units == 0 || args.layers == 0) return cudaSuccess;
  const auto kernel = args.kv.type == KvType::kBF16  ? update_kernel<KvType::kBF16>
                      : args.kv.type == KvType::kF16 ? update_kernel<KvType::kF16>
                                                     : update_kernel<KvType::kFP8>;
  return launch_overlapped(kernel, bound_blocks(units, args.layers), kBoundWarps * 32, stream,
                           args);
}

cudaError_t bound_pages(const PagedKv& kv, const PageIds& pages, __nv_bfloat16* bounds,
                        cudaStream_t stream) {
  const uint64_t units = uint64_t{pages.count} * kv.n_kv_head;
  if (!is_served(kv)) return cudaErrorNotSupported;
  if (units == 0) return cudaSuccess;
  if (kv.pages == nullptr) return cudaErrorInvalidValue;
  const auto kernel = kv.type == KvType::kBF16  ? list_kernel<KvType::kBF16>
                      : kv.type == KvType::kF16 ? list_kernel<KvType::kF16>
                                                : list_kernel<KvType::kFP8>;
  return launch_overlapped(kernel, bound_blocks(units), kBoundWarps * 32, stream, kv, pages,
                           bounds);
}

cudaError_t score_pages(const PageScoreArgs& args, cudaStream_t stream) {
  if (args.rows.count == 0 || args.rows.capacity == 0) return cudaSuccess;
  const uint32_t group = args.n_kv_head > 0 ? args.n_head / args.n_kv_head : 0;
  if (group < 1 || group > 16) return cudaErrorNotSupported;
  return with_head_dim(args.head_dim, [&](auto dim) { return launch_score<dim>(args, stream); });
}

}  // namespace reprise::kernels::cuda

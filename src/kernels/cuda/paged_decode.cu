// Few pairs of a sequence and a KV head: each gets an equal number of blocks, and uses as many of
// them as its length is worth. Many pairs: their pages are laid end to end, and every block reads
// an equal share (stream-K, Osama et al. 2023). Blocks that share a pair leave partial results,
// which the last of them merges. Warps take pages in turn.
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/paged_decode_merge.cuh"
#include "kernels/cuda/paged_decode_pages.cuh"
#include "kernels/cuda/paged_decode_params.cuh"
#include "kernels/cuda/paged_decode_warp.cuh"

namespace reprise::kernels::cuda {
namespace {

using namespace decode;

// Partial results: two of each block, two blocks of a multiprocessor.
constexpr size_t kMaxRows = 4;

template <typename S>
size_t shared_bytes(uint32_t group, uint32_t pairs) {
  return sizeof(Shared<S>) + size_t{S::kWarps} * group * S::kHeadDim * 4 + (size_t{pairs} + 1) * 4;
}

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
template <typename S>
__device__ void attend_share(const Params& p, Shared<S>& shared, uint32_t pair, uint32_t begin,
                             uint32_t end) {
  const uint32_t* first_page = shared.first_page(p.group);
  const uint32_t warp = threadIdx.x / 32;
  uint32_t mine = begin + warp;
  PageStream<S> stream(p, first_page, pair, mine, end, shared.pages[warp], &shared.full[warp]);
  stream.fetch();
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
      state.attend(p, shared.pages[warp], angles, seen);
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
    finish_pair<S>(p, shared, pair, row, pieces);
    page = pair_end;
  }
}

template <typename S>
__device__ void write_empty(const Params& p, uint32_t pair) {
  for (uint32_t i = threadIdx.x * 2; i < p.group * S::kHeadDim; i += S::kThreads * 2) {
    write_result<S::kHeadDim>(p, pair, i, {});
  }
}

template <typename S>
__device__ void attend_part(const Params& p, Shared<S>& shared) {
  const uint32_t pair = blockIdx.x / p.splits, part = blockIdx.x % p.splits;
  const uint32_t pages = p.list_pages(pair), parts = used_splits<S>(p, pages);
  if (pages == 0 && part == 0) write_empty<S>(p, pair);
  if (part >= parts) return;
  if (threadIdx.x == 0) {
    uint32_t* first_page = shared.first_page(p.group);
    first_page[pair] = 0;
    first_page[pair + 1] = pages;
  }
  __syncthreads();
  attend_share<S>(p, shared, pair, pages * part / parts, pages * (part + 1) / parts);
}

template <typename S>
__global__ __launch_bounds__(S::kThreads,
                             S::kBlocks) void attend_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(memory);
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x < S::kWarps) barrier_init(&shared.full[threadIdx.x], 1);
  publish_barriers();
#endif
  wait_for_kernels_before();
  if (p.splits > 0) return attend_part<S>(p, shared);
  uint32_t* first_page = shared.first_page(p.group);
  count_pages<S>(p.pairs, shared.scan, first_page,
                 [&](uint32_t pair) { return p.list_pages(pair); });
  const uint32_t pages = first_page[p.pairs];
  for (uint32_t pair = blockIdx.x; pair < p.pairs; pair += gridDim.x) {
    if (first_page[pair + 1] == first_page[pair]) write_empty<S>(p, pair);
  }
  if (blockIdx.x >= shares(pages)) return;
  const uint32_t begin = share_begin(pages, blockIdx.x), end = share_begin(pages, blockIdx.x + 1);
  attend_share<S>(p, shared, pair_of(first_page, p.pairs, begin), begin, end);
}

template <typename S>
cudaError_t launch(Params params, const DeviceLimits& device, cudaStream_t stream) {
  const uint32_t blocks = device.multiprocessors * S::kBlocks;
  params.splits = blocks / params.pairs;
  const size_t bytes = shared_bytes<S>(params.group, params.pairs);
  const cudaError_t status = cudaFuncSetAttribute(
      attend_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  const uint32_t grid = params.splits > 0 ? params.splits * params.pairs : blocks;
  return launch_overlapped(attend_kernel<S>, dim3(grid), S::kThreads, bytes, stream, params);
}

template <KvType type, int D, bool rotates>
cudaError_t launch_groups(const Params& params, cudaStream_t stream) {
  using Few = Shape<type, D, 1, false, rotates>;
  using Many = Shape<type, D, 1, true, rotates>;
  const DeviceLimits device = device_limits();
  const auto fits = [&](size_t bytes) { return bytes <= device.shared_bytes; };
  if (params.group > 16) return cudaErrorNotSupported;
  if (params.group <= 8) {
    if constexpr (!rotates || D > 128) {
      const bool few = params.pairs <= device.multiprocessors;
      if (few && fits(shared_bytes<Few>(params.group, params.pairs))) {
        return launch<Few>(params, device, stream);
      }
    }
    if constexpr (D <= 128) return launch<Many>(params, device, stream);
  }
  return launch<Shape<type, D, 2, false, rotates>>(params, device, stream);
}

}  // namespace

size_t paged_decode_workspace(uint32_t max_batch, uint32_t n_head, uint32_t n_kv_head,
                              uint32_t head_dim) {
  const size_t rows = kMaxRows * device_limits().multiprocessors * (n_head / n_kv_head);
  return rows * (head_dim + 2) * sizeof(float) + size_t{max_batch} * n_kv_head * sizeof(uint32_t);
}

cudaError_t paged_decode(const PagedDecodeArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  Params params;
  params.pages = static_cast<const unsigned char*>(args.kv.pages);
  params.lists = args.lists;
  params.angles = args.angles;
  params.n_kv_head = args.kv.n_kv_head;
  params.pairs = args.batch * args.kv.n_kv_head;
  params.group = args.n_head / args.kv.n_kv_head;
  params.q = args.q;
  params.q_capped = args.q_capped;
  params.capped_pages = args.capped_pages;
  params.scale = args.scale;
  params.soft_cap = args.soft_cap;
  params.out = args.out;
  params.lse = args.lse;
  const size_t rows = kMaxRows * device_limits().multiprocessors * params.group;
  params.part_sums = static_cast<float*>(args.workspace);
  params.part_base = params.part_sums + rows * args.kv.head_dim;
  params.part_total = params.part_base + rows;
  params.arrivals = reinterpret_cast<uint32_t*>(params.part_total + rows);
  return with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    if (args.angles.of_pages != nullptr) return launch_groups<type, dim, true>(params, stream);
    return launch_groups<type, dim, false>(params, stream);
  });
}

}  // namespace reprise::kernels::cuda

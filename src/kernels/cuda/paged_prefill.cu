#include <algorithm>

#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/prefill_merge.cuh"
#include "kernels/cuda/prefill_mma.cuh"
#include "kernels/cuda/prefill_wgmma.cuh"

namespace reprise::kernels::cuda {
namespace {

using prefill::Params;

// At least as many as there are.
template <typename S>
uint32_t tiles(const Params& params, uint32_t rows) {
  const uint32_t row_tiles = (rows * params.group + S::kRows - 1) / S::kRows;
  return (row_tiles + params.batch - 1) * params.n_kv_head;
}

// Of all rows together, at most.
struct Extent {
  uint32_t first_row = 0, rows = 0, keys = 0;
};

uint32_t most_keys(const PagedPrefillArgs& args) {
  const auto bounds = static_cast<uint32_t>(std::max(args.end_key - args.first_key, 0));
  return std::min({args.keys, args.capacity * kPageTokens, bounds});
}

// A part for each multiprocessor, of at least four blocks of keys of the longest sequence.
template <typename S>
uint32_t parts_of(const Params& params, const Extent& extent, uint32_t multiprocessors) {
  static_assert(S::kRows <= kMostTileRows);
  const uint32_t all = std::min(multiprocessors, kSplitBlocks) / tiles<S>(params, extent.rows);
  return std::max(std::min(all, extent.keys / (4 * S::kKeys)), 1u);
}

template <typename S>
cudaError_t launch_mma(const Params& params, uint32_t blocks, cudaStream_t stream) {
  constexpr auto kKernel = prefill::mma_kernel<S>;
  constexpr int kBytes = sizeof(prefill::MmaShared<S>);
  const cudaError_t status = allow_all_shared(kKernel);
  if (status != cudaSuccess) return status;
  kKernel<<<blocks, S::kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

template <typename S>
cudaError_t launch_wgmma(const Params& params, uint32_t blocks, cudaStream_t stream) {
  constexpr auto kKernel = prefill::wgmma_kernel<S>;
  constexpr int kBytes = sizeof(prefill::WgmmaShared<S>);
  const cudaError_t status = allow_all_shared(kKernel);
  if (status != cudaSuccess) return status;
  kKernel<<<blocks, S::kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

// launch(params, tiles), and what puts parts together where there are some.
template <typename S, typename Launch>
cudaError_t launch_parts(const Params& params, const Extent& extent, uint32_t multiprocessors,
                         cudaStream_t stream, Launch&& launch) {
  const uint32_t all = tiles<S>(params, extent.rows);
  Params parted = params;
  parted.parts = parts_of<S>(params, extent, multiprocessors);
  if (parted.parts == 1) return launch(params, all);
  parted.first_row = extent.first_row;
  parted.part_rows = size_t{extent.rows} * params.n_head;
  float* const out = reinterpret_cast<float*>(params.next_tile) + kUnsplitPrefillWorkspace / 4;
  parted.out = out;
  parted.lse = out + parted.parts * parted.part_rows * S::kHeadDim;
  parted.f32_out = true;
  const cudaError_t status = launch(parted, all * parted.parts);
  return status != cudaSuccess
             ? status
             : prefill::merge_parts<S::kHeadDim>(params, parted, extent.rows, stream);
}

struct Device {
  int multiprocessors = 0, l2_bytes = 0;
};

cudaError_t current_device(Device* device) {
  int id = 0;
  cudaError_t status = cudaGetDevice(&id);
  const auto get = [&](int* value, cudaDeviceAttr attribute) {
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(value, attribute, id);
  };
  get(&device->multiprocessors, cudaDevAttrMultiProcessorCount);
  get(&device->l2_bytes, cudaDevAttrL2CacheSize);
  return status;
}

template <KvType type, int D>
cudaError_t launch(Params& params, const Extent& extent, cudaStream_t stream) {
  Device device;
  const cudaError_t status = current_device(&device);
  if (status != cudaSuccess) return status;
  const auto multiprocessors = static_cast<uint32_t>(device.multiprocessors);
  params.cached_keys = device.l2_bytes / (2 * tile_bytes(type, D)) * kPageTokens;
  if constexpr (D % 64 == 0) {
    using S = prefill::WgmmaShape<type, D, D == 64 && type != KvType::kFP8 ? 3 : 2>;
    if (has_wgmma(prefill::wgmma_kernel<S>)) {
      return launch_parts<S>(
          params, extent, multiprocessors, stream, [&](const Params& own, uint32_t blocks) {
            return launch_wgmma<S>(own, std::min(multiprocessors, blocks), stream);
          });
    }
  }
  using S = prefill::MmaShape<type, D>;
  return launch_parts<S>(
      params, extent, multiprocessors, stream,
      [&](const Params& own, uint32_t blocks) { return launch_mma<S>(own, blocks, stream); });
}

}  // namespace

cudaError_t paged_prefill(const PagedPrefillArgs& args, cudaStream_t stream) {
  Params params;
  params.kv = static_cast<const unsigned char*>(args.kv.pages);
  params.sequences = args.sequences;
  params.pages = args.pages;
  params.batch = args.batch;
  params.capacity = args.capacity;
  params.n_head = args.n_head;
  params.n_kv_head = args.kv.n_kv_head;
  params.group = args.n_head / args.kv.n_kv_head;
  params.q = static_cast<const __nv_bfloat16*>(args.q);
  params.positions = args.positions;
  params.scale = args.scale;
  params.soft_cap = args.soft_cap;
  params.window = args.window;
  params.first_key_bound = args.first_key;
  params.end_key_bound = args.end_key;
  params.lag = args.lag;
  params.align = args.align;
  params.out = args.out;
  params.f32_out = args.f32_out;
  params.lse = args.lse;
  params.next_tile = static_cast<uint32_t*>(args.workspace);
  if (params.group < 1 || params.group > 16) return cudaErrorNotSupported;
  if (args.rows == 0 || args.batch == 0) return cudaSuccess;
  return with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    return launch<type, dim>(params, {args.first_row, args.rows, most_keys(args)}, stream);
  });
}

}  // namespace reprise::kernels::cuda

#include <algorithm>

#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/prefill_mma.cuh"
#include "kernels/cuda/prefill_wgmma.cuh"

namespace reprise::kernels::cuda {
namespace {

using prefill::Params;

// At least as many as there are.
template <typename S>
uint32_t tiles(const Params& params, uint32_t rows) {
  const uint32_t row_tiles = (rows * params.group + S::kRows - 1) / S::kRows;
  return (row_tiles + params.batch) * params.n_kv_head;
}

template <typename S>
cudaError_t launch_mma(const Params& params, uint32_t rows, cudaStream_t stream) {
  constexpr auto kKernel = prefill::mma_kernel<S>;
  constexpr int kBytes = sizeof(prefill::MmaShared<S>);
  const cudaError_t status = allow_all_shared(kKernel);
  if (status != cudaSuccess) return status;
  kKernel<<<tiles<S>(params, rows), S::kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

template <typename S>
cudaError_t launch_wgmma(const Params& params, uint32_t rows, uint32_t multiprocessors,
                         cudaStream_t stream) {
  constexpr auto kKernel = prefill::wgmma_kernel<S>;
  constexpr int kBytes = sizeof(prefill::WgmmaShared<S>);
  const cudaError_t status = allow_all_shared(kKernel);
  if (status != cudaSuccess) return status;
  const uint32_t blocks = std::min(multiprocessors, tiles<S>(params, rows));
  kKernel<<<blocks, S::kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
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
cudaError_t launch(Params& params, uint32_t rows, cudaStream_t stream) {
  Device device;
  const cudaError_t status = current_device(&device);
  if (status != cudaSuccess) return status;
  params.cached_keys = device.l2_bytes / (2 * tile_bytes(type, D)) * kPageTokens;
  if constexpr (D % 64 == 0) {
    using S = prefill::WgmmaShape<type, D, D == 64 && type != KvType::kFP8 ? 3 : 2>;
    if (has_wgmma(prefill::wgmma_kernel<S>)) {
      return launch_wgmma<S>(params, rows, static_cast<uint32_t>(device.multiprocessors), stream);
    }
  }
  return launch_mma<prefill::MmaShape<type, D>>(params, rows, stream);
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
  if (args.rows == 0) return cudaSuccess;
  return with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    return launch<type, dim>(params, args.rows, stream);
  });
}

}  // namespace reprise::kernels::cuda

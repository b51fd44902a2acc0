// Few pairs of a sequence and a KV head: each gets an equal number of blocks, and uses as many of
// them as its length is worth. Many pairs: their pages are laid end to end, and every block reads
// an equal share (stream-K, Osama et al. 2023). Blocks that share a pair leave partial results,
// which the last of them merges. Warps take pages in turn. Compiled for each KV type apart.
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/paged_decode_block.cuh"

namespace reprise::kernels::cuda {
namespace decode {
namespace {

template <typename S>
size_t shared_bytes(uint32_t group, uint32_t pairs) {
  return sizeof(Shared<S>) + size_t{S::kWarps} * group * S::kHeadDim * 4 + (size_t{pairs} + 1) * 4;
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
  allow_next_kernel();
  if (!p.known_pages) wait_for_kernels_before();
  attend_pairs(p, shared, [](uint32_t) {});
  if (p.known_pages) wait_for_kernels_before();  // blocks without a page
}

template <typename S>
cudaError_t launch(Params params, uint32_t blocks, cudaStream_t stream) {
  params.splits = blocks / params.pairs;
  const size_t bytes = shared_bytes<S>(params.group, params.pairs);
  const cudaError_t status = allow_all_shared(attend_kernel<S>);
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
        return launch<Few>(params, device.multiprocessors, stream);
      }
    }
    if constexpr (D <= 128) {
      return launch<Many>(params, device.multiprocessors * Many::kBlocks, stream);
    }
  }
  return launch<Shape<type, D, 2, false, rotates>>(params, device.multiprocessors, stream);
}

}  // namespace

template <KvType type>
cudaError_t attend_with(const Params& params, uint32_t head_dim, cudaStream_t stream) {
  return with_head_dim(head_dim, [&](auto dim) {
    if (params.angles.of_pages != nullptr) return launch_groups<type, dim, true>(params, stream);
    return launch_groups<type, dim, false>(params, stream);
  });
}

template cudaError_t attend_with<KvType::REPRISE_KV_TYPE>(const Params&, uint32_t, cudaStream_t);

}  // namespace decode
}  // namespace reprise::kernels::cuda

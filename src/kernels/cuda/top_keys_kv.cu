// A scan by blocks that each take some of the queries of a KV head and some of the keys. Compiled
// for each KV type apart.
#include <algorithm>

#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/top_keys_wide.cuh"

namespace reprise::kernels::cuda {
namespace top {
namespace {

constexpr uint32_t kFewQueries = 24;

// Blocks per processor that few enough work items are worth, such that the last wave is full.
uint32_t splits_of(uint32_t blocks, uint32_t multiprocessors) {
  uint32_t best = 1;
  double best_share = 0.0;
  for (uint32_t splits = 1; splits * blocks <= 2 * multiprocessors || splits == 1; ++splits) {
    const uint32_t waves = pieces(splits * blocks, multiprocessors);
    const double share = static_cast<double>(splits * blocks) / (waves * multiprocessors);
    if (share <= best_share + 0.02) continue;
    best = splits;
    best_share = share;
  }
  return best;
}

template <typename S>
size_t shared_bytes(const Params& p) {
  return sizeof(Ring<S>) +
         lists_bytes(p.key_warps, p.query_warps * S::kQueries, room_of(p.a.k), S::kGroups);
}

// As many warps as lists have room for.
template <typename S>
bool arrange(Params& p, size_t limit) {
  const uint32_t all = pieces(p.queries, S::kQueries);
  for (uint32_t warps = S::kMostWarps; warps > 0; --warps) {
    p.query_blocks = pieces(all, warps);
    p.query_warps = pieces(all, p.query_blocks);
    p.key_warps = std::min(warps / p.query_warps, S::kPages);
    if (shared_bytes<S>(p) <= limit) return true;
  }
  return false;
}

template <typename S>
cudaError_t launch_scan(Params& p, cudaStream_t stream) {
  const DeviceLimits device = device_limits();
  if (!arrange<S>(p, device.shared_bytes)) return cudaErrorNotSupported;
  const uint32_t heads = p.a.kv.n_kv_head * p.query_blocks;
  p.splits = splits_of(heads * p.a.batch, device.multiprocessors);
  const size_t bytes = shared_bytes<S>(p);
  const cudaError_t status = allow_all_shared(scan_kernel<S>);
  if (status != cudaSuccess) return status;
  return launch_overlapped(scan_kernel<S>, dim3(p.splits, heads, p.a.batch),
                           (p.query_warps * p.key_warps + 1) * 32, bytes, stream, p);
}

// Whether blocks of so many queries have few places left over.
template <typename S>
bool fills_wide_blocks(const Params& p) {
  const uint32_t places = pieces(p.queries, S::kBlockQueries) * S::kBlockQueries;
  return p.queries * 4 >= places * 3;
}

template <typename S>
cudaError_t launch_wide_scan(Params& p, cudaStream_t stream) {
  p.query_warps = S::kWarps;
  p.key_warps = 1;
  p.query_blocks = pieces(p.queries, S::kBlockQueries);
  const uint32_t heads = p.a.kv.n_kv_head * p.query_blocks;
  p.splits = splits_of(heads * p.a.batch, device_limits().multiprocessors);
  const size_t bytes =
      sizeof(WideShared<S>) + lists_bytes(p.key_warps, S::kBlockQueries, S::kRoom, S::kGroups);
  const cudaError_t status = allow_all_shared(wide_scan_kernel<S>);
  if (status != cudaSuccess) return status;
  return launch_overlapped(wide_scan_kernel<S>, dim3(p.splits, heads, p.a.batch), S::kThreads,
                           bytes, stream, p);
}

template <KvType type, int D>
cudaError_t launch_scan(Params& p, cudaStream_t stream) {
  if constexpr (type != KvType::kFP8 && (D == 64 || D == 128)) {
    using Wide = WideShape<type, D>;
    const bool wide = p.a.k <= kMostWidePicks && fills_wide_blocks<Wide>(p);
    if (wide && has_wgmma(wide_scan_kernel<Wide>)) return launch_wide_scan<Wide>(p, stream);
  }
  constexpr int kTiles = D < 256 ? 4 : 2;
  if (p.queries <= kFewQueries) return launch_scan<Shape<type, D, 1>>(p, stream);
  return launch_scan<Shape<type, D, kTiles>>(p, stream);
}

}  // namespace

template <KvType type>
cudaError_t scan_with(Params& params, cudaStream_t stream) {
  return with_head_dim(params.a.kv.head_dim,
                       [&](auto dim) { return launch_scan<type, dim>(params, stream); });
}

template cudaError_t scan_with<KvType::REPRISE_KV_TYPE>(Params&, cudaStream_t);

}  // namespace top
}  // namespace reprise::kernels::cuda

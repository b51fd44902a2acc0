// One kernel, all of whose blocks run at once: see mac_block.cuh.
#include <algorithm>

#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mac_block.cuh"

namespace reprise::kernels::cuda {
namespace mac {
namespace {

template <typename S>
size_t shared_bytes(const Params& p) {
  return sizeof(decode::Shared<S>) + size_t{S::kWarps} * p.group * S::kHeadDim * 4 +
         Lists::bytes(p.pairs / p.n_kv_head, p.pairs, p.group);
}

template <typename S>
__global__ __launch_bounds__(S::kThreads,
                             S::kBlocks) void mac_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ SearchShared search;
  decode::Shared<S>& shared = *reinterpret_cast<decode::Shared<S>*>(memory);
  allow_next_kernel();
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x < S::kWarps) barrier_init(&shared.full[threadIdx.x], 1);
  publish_barriers();
#endif
  Block<S> block(p, shared);
  block.run(search);
  for (uint32_t pair = blockIdx.x; pair < p.pairs; pair += gridDim.x) {
    if (p.positions[pair / p.n_kv_head] >= 0) continue;
    for (uint32_t i = threadIdx.x * 2; i < p.group * S::kHeadDim; i += S::kThreads * 2) {
      decode::write_result<S::kHeadDim>(p, pair, i, {});
    }
  }
}

constexpr uint32_t kFewPairs = 16;

template <typename S>
cudaError_t launch(Params params, bool overlap, cudaStream_t stream) {
  const DeviceLimits device = device_limits();
  const size_t bytes = shared_bytes<S>(params);
  if (bytes > device.shared_bytes) return cudaErrorNotSupported;
  cudaError_t status = cudaFuncSetAttribute(
      mac_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (status != cudaSuccess) return status;
  // Blocks wait for one another: all of them must fit at once.
  int fit = 0;
  status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, mac_kernel<S>, S::kThreads, bytes);
  if (status != cudaSuccess) return status;
  if (fit == 0) return cudaErrorNotSupported;
  // Room is left for blocks of the next kernel while the last of these merge. Of few pairs fewer
  // pieces are merged sooner.
  const bool few = params.pairs <= kFewPairs;
  const uint32_t all = device.multiprocessors * (few ? 1 : std::min<uint32_t>(fit, S::kBlocks));
  const uint32_t grid = std::min(all - (few ? 0 : std::min(all / 32, params.pairs)),
                                 Weights::most_pieces(S::kWarps * S::kHeadDim) - params.chunks - 1);
  // Where chunks are few, blocks without one compare.
  const uint32_t chunks = params.pairs * params.chunks;
  params.searches = Shares(params.pairs * params.units, 2 * chunks <= grid ? grid - chunks : grid);
  params.near = Shares(chunks, grid);
  if (overlap)
    return launch_overlapped(mac_kernel<S>, dim3(grid), S::kThreads, bytes, stream, params);
  mac_kernel<S><<<grid, S::kThreads, bytes, stream>>>(params);
  return cudaGetLastError();
}

template <KvType type, int D>
cudaError_t launch_groups(const Params& params, bool overlap, cudaStream_t stream) {
  if (params.group > 8) return launch<Shape<type, D, 2>>(params, overlap, stream);
  return launch<Shape<type, D, 1>>(params, overlap, stream);
}

constexpr uint32_t kMaxPairs = 4096, kMaxBlocks = 2;  // blocks: of a multiprocessor

// Of a pair, enough for every row: see mac_lists.cuh.
struct ChunkCounts {
  uint32_t fresh, near;

  ChunkCounts(const MacRules& rules, uint32_t warps) {
    const auto count = [&](uint32_t keys) {  // that may begin anywhere in a page
      return (keys / kPageTokens + 1 + warps) / warps;
    };
    const auto align = static_cast<uint32_t>(rules.align);
    const uint32_t sinks = (static_cast<uint32_t>(rules.sink) + kPageTokens - 1) / kPageTokens;
    fresh = count(sinks * kPageTokens + static_cast<uint32_t>(rules.band) + align);
    near = count(static_cast<uint32_t>(rules.max_gap) + align);
  }
};

// A workspace: arrivals and the grid's barrier, candidates, pieces.
struct Room {
  static constexpr size_t kWords = kMaxPairs + 2;
  size_t candidates, rows;

  Room(uint32_t pairs, uint32_t group, uint32_t chunks) {
    const size_t blocks = size_t{kMaxBlocks} * device_limits().multiprocessors;
    candidates = (pairs + blocks) * group;
    rows = (pairs * (size_t{chunks} + 1) + blocks) * group;
  }
};

Params params_of(const MacArgs& args) {
  Params params = {};
  params.pages = static_cast<const unsigned char*>(args.kv.pages);
  params.n_kv_head = args.kv.n_kv_head;
  params.pairs = args.batch * args.kv.n_kv_head;
  params.group = args.n_head / args.kv.n_kv_head;
  params.q = args.q;
  params.scale = args.scale;
  params.soft_cap = args.soft_cap;
  params.out = args.out;
  params.lse = args.lse;
  const uint32_t warps = warps_of(args.kv.head_dim, params.group);
  const ChunkCounts chunks(args.rules, warps);
  params.fresh_chunks = chunks.fresh;
  params.chunks = chunks.fresh + chunks.near;
  const Room room(params.pairs, params.group, params.chunks);
  params.arrivals = static_cast<uint32_t*>(args.workspace);
  params.barrier = params.arrivals + kMaxPairs;
  params.candidates = reinterpret_cast<uint64_t*>(params.arrivals + Room::kWords);
  params.part_sums = reinterpret_cast<float*>(params.candidates + room.candidates);
  params.part_base = params.part_sums + room.rows * args.kv.head_dim;
  params.part_total = params.part_base + room.rows;
  params.page_table = args.pages;
  params.capacity = args.capacity;
  params.positions = args.positions;
  params.rings = args.rings;
  params.q_plain = args.q_plain;
  params.ring = args.ring;
  params.rules = args.rules;
  params.slots = warps * 32 / 4 / params.group;
  params.units = (args.ring.window + params.slots - 1) / params.slots;
  params.by_kv_head = Divider(params.n_kv_head);
  params.by_group = Divider(params.group);
  params.by_units = Divider(params.units);
  params.by_chunks = Divider(params.chunks);
  params.by_window = Divider(args.ring.window);
  constexpr float kBarrierBytes = 4e6f;  // that a launch could read while blocks wait
  params.pair_bytes = kBarrierBytes / static_cast<float>(params.pairs);
  return params;
}

}  // namespace
}  // namespace mac

size_t mac_workspace(const MacRules& rules, uint32_t max_batch, uint32_t n_head, uint32_t n_kv_head,
                     uint32_t head_dim) {
  const uint32_t group = n_head / n_kv_head;
  const mac::ChunkCounts chunks(rules, mac::warps_of(head_dim, group));
  const mac::Room room(max_batch * n_kv_head, group, chunks.fresh + chunks.near);
  return mac::Room::kWords * sizeof(uint32_t) + room.candidates * sizeof(uint64_t) +
         room.rows * (head_dim + 2) * sizeof(float);
}

cudaError_t mac_decode(const MacArgs& args, cudaStream_t stream) {
  using namespace mac;
  if (args.batch == 0) return cudaSuccess;
  const uint32_t group = args.n_head / args.kv.n_kv_head;
  if (group > kMaxGroup || args.batch * args.kv.n_kv_head > kMaxPairs) return cudaErrorNotSupported;
  const Params params = params_of(args);
  return with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    return launch_groups<type.value, dim.value>(params, args.overlap, stream);
  });
}

}  // namespace reprise::kernels::cuda

// One kernel, all of whose blocks run at once: see mac_block.cuh. Compiled for each KV type apart.
#include <algorithm>

#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mac_block.cuh"
#include "kernels/cuda/mac_rest.cuh"
#include "kernels/cuda/mac_room.cuh"

namespace reprise::kernels::cuda {
namespace mac {
namespace {

template <typename S>
size_t shared_bytes(const Params& p) {
  return sizeof(decode::Shared<S>) + size_t{S::kWarps} * p.group * S::kHeadDim * 4 +
         Lists::bytes(p);
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
  const Lists lists(p, shared.first_page(p.group));
  find_rows(p, lists);
  const Verdict verdict = find_verdict<S>(p, lists);
  if (verdict.mode != Mode::kReuse) {
    return rest<S>(p, shared, search, verdict.mode == Mode::kTry);
  }
  Block<S>(p, shared, lists, verdict.compares).run(search);
}

Params params_of(const MacArgs& args) {
  Params params = {};
  params.pages = static_cast<const unsigned char*>(args.kv.pages);
  params.lists = args.lists;
  params.numbers = args.numbers;
  params.sparse = args.numbers != nullptr;
  params.known_pages = !params.sparse;  // of launches that rest
  params.n_kv_head = args.kv.n_kv_head;
  params.pairs = args.batch * args.kv.n_kv_head;
  params.group = args.n_head / args.kv.n_kv_head;
  params.q = args.q;
  params.scale = args.scale;
  params.soft_cap = args.soft_cap;
  params.out = args.out;
  params.lse = args.lse;
  params.page_table = args.pages;
  params.capacity = args.capacity;
  params.positions = args.positions;
  params.rings = args.rings;
  params.q_plain = args.q_plain;
  params.ring = args.ring;
  params.ring_heads = args.ring.layers * args.kv.n_kv_head;
  params.rules = args.rules;
  params.by_kv_head = Divider(params.n_kv_head);
  params.by_group = Divider(params.group);
  params.by_window = Divider(args.ring.window);
  return params;
}

// Pairs of which each is merged by a block of its own.
bool is_few(uint32_t pairs) { return pairs <= device_limits().multiprocessors / 8; }

// What depends on the warps of a block.
void cut_lists(const MacArgs& args, uint32_t warps, Params& params) {
  constexpr uint32_t kFewPages = 11;  // whereby more blocks read the pages of few pairs
  params.chunk_pages = is_few(params.pairs) ? std::min(warps, kFewPages) : warps;
  params.joins = params.chunk_pages == warps;
  const ChunkCounts chunks(args.rules, params.chunk_pages);
  params.fresh_chunks = chunks.fresh;
  params.chunks = chunks.fresh + chunks.near;
  params.slots = warps * 32 / 4 / params.group;
  params.units = (args.ring.window + params.slots - 1) / params.slots;
  params.by_units = Divider(params.units);
  params.by_chunks = Divider(params.chunks);
  const Room room(params.pairs, params.group, params.chunks);
  const uint32_t dim = args.kv.head_dim;
  params.barrier = static_cast<unsigned long long*>(args.workspace);
  params.arrivals = static_cast<uint32_t*>(args.workspace) + Room::kBarrierWords;
  params.part_sums = reinterpret_cast<float*>(params.arrivals + kMaxPairs);
  params.part_base = params.part_sums + room.decode_rows * dim;
  params.part_total = params.part_base + room.decode_rows;
  params.candidates = reinterpret_cast<Message*>(params.part_sums + room.decode_floats(dim));
  params.piece_weights = params.candidates + room.candidates;
  params.piece_sums = params.piece_weights + room.rows;
}

// Few pairs are merged by blocks that do nothing else; the next kernel's take their places last.
void share_blocks(uint32_t grid, Params& params) {
  const bool few = is_few(params.pairs);
  params.first_merger = few ? grid - params.pairs : 0;
  params.blocks = few ? params.first_merger : grid;
}

template <typename S>
cudaError_t launch(const MacArgs& args, Params params, cudaStream_t stream) {
  const size_t bytes = shared_bytes<S>(params);
  cudaError_t status = allow_all_shared(mac_kernel<S>);
  if (status != cudaSuccess) return status;
  // Blocks wait for one another: all of them must fit at once.
  int fit = 0;
  status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, mac_kernel<S>, S::kThreads, bytes);
  if (status != cudaSuccess) return status;
  if (fit == 0) return cudaErrorNotSupported;
  cut_lists(args, S::kWarps, params);
  const uint32_t grid =
      device_limits().multiprocessors * std::min<uint32_t>(static_cast<uint32_t>(fit), S::kBlocks);
  params.splits = grid / params.pairs;
  share_blocks(grid, params);
  // Where chunks are few, blocks without one compare.
  const uint32_t chunks = params.pairs * params.chunks;
  params.searches =
      FixedShares(params.pairs * params.units,
                  2 * chunks <= params.blocks ? params.blocks - chunks : params.blocks);
  params.near = FixedShares(chunks, params.blocks);
  if (args.overlap)
    return launch_overlapped(mac_kernel<S>, dim3(grid), S::kThreads, bytes, stream, params);
  mac_kernel<S><<<grid, S::kThreads, bytes, stream>>>(params);
  return cudaGetLastError();
}

// Blocks are shaped as those of decode attention, which they do when they rest.
template <typename Decode, bool coded>
struct Shape : Decode {
  static constexpr bool kCoded = coded;  // rings
};

template <KvType type, int D, bool coded>
cudaError_t launch_groups(const MacArgs& args, cudaStream_t stream) {
  using Few = Shape<decode::Shape<type, D, 1, false>, coded>;
  using Many = Shape<decode::Shape<type, D, 1, true>, coded>;
  const Params params = params_of(args);
  const DeviceLimits device = device_limits();
  const auto fits = [&](size_t bytes) { return bytes <= device.shared_bytes; };
  if (params.group <= 8) {
    if (params.pairs <= device.multiprocessors && fits(shared_bytes<Few>(params))) {
      return launch<Few>(args, params, stream);
    }
    if constexpr (D <= 128) {
      if (!fits(shared_bytes<Many>(params))) return cudaErrorNotSupported;
      return launch<Many>(args, params, stream);
    }
  }
  using Wide = Shape<decode::Shape<type, D, 2, false>, coded>;
  if (!fits(shared_bytes<Wide>(params))) return cudaErrorNotSupported;
  return launch<Wide>(args, params, stream);
}

}  // namespace

template <KvType type>
cudaError_t decode_with(const MacArgs& args, cudaStream_t stream) {
  return with_head_dim(args.kv.head_dim, [&](auto dim) {
    return args.ring.coded() ? launch_groups<type, dim.value, true>(args, stream)
                             : launch_groups<type, dim.value, false>(args, stream);
  });
}

template cudaError_t decode_with<KvType::REPRISE_KV_TYPE>(const MacArgs&, cudaStream_t);

}  // namespace mac
}  // namespace reprise::kernels::cuda

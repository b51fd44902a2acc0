// One kernel, all of whose blocks run at once. A block asks for its share of the rings and of the
// keys that are read in any case (fresh and near lists) before queries are there, compares, and
// attends to those keys. Once all blocks have compared it decides as they do, and takes a share of
// what is left (far lists): a single KV head without a match occupies the whole device.
#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mac_merge.cuh"
#include "kernels/cuda/mac_search.cuh"
#include "kernels/cuda/mac_stream.cuh"
#include "kernels/cuda/paged_decode_pages.cuh"
#include "kernels/cuda/paged_decode_warp.cuh"

namespace reprise::kernels::cuda {
namespace mac {
namespace {

using decode::Warp;

constexpr uint32_t warps_of(uint32_t head_dim, uint32_t group) {
  return head_dim > 128 && group > 8 ? 4 : 8;
}

template <KvType type, int D, int NT>
struct Shape : decode::Shape<type, D, NT, true> {
  static constexpr int kWarps = warps_of(D, NT * 8), kThreads = kWarps * 32;
};

template <typename S>
size_t shared_bytes(const Params& p) {
  return sizeof(decode::Shared<S>) + size_t{S::kWarps} * p.group * S::kHeadDim * 4 +
         Lists::bytes(p.pairs / p.n_kv_head, p.pairs, p.group);
}

// Pages of one list in a block's shares.
struct Unit {
  uint32_t pair;
  bool fresh;
  uint32_t begin, end;  // among the block's indices
  uint32_t index;       // of the first one in its list
  uint32_t pages;
  uint32_t row;  // of the piece that comes of it
};

// Where blocks wait for one another, once in a launch; thread 0 calls. The highest bit of the word
// changes when all have arrived, and the others are zero again.
struct GridBarrier {
  uint32_t* word;
  uint32_t before = 0;

  __device__ void arrive() {
    const uint32_t add = blockIdx.x == 0 ? 0x80000001u - gridDim.x : 1;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word), "r"(add)
                 : "memory");
  }
  __device__ void wait() const {
    uint32_t now = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    } while (((now ^ before) >> 31) == 0);
  }
};

template <typename S>
class Block {
  static constexpr uint32_t D = S::kHeadDim;
  static constexpr int NT = S::kHeadTiles;
  static constexpr float kKeyBytes = 2.0f * S::kTileBytes / kPageTokens;
  using Stream = PageStream<S>;

 public:
  __device__ Block(const Params& p, decode::Shared<S>& shared)
      : p_(p), shared_(shared), lists_(p, shared.first_page(p.group)), barrier_{p.barrier} {}

  __device__ void run(SearchShared& search_shared) {
    Search<S> search(p_, search_shared);
    find_rows();
    first_chunk_ = p_.near.begin(blockIdx.x);
    near_count_ = (p_.near.begin(blockIdx.x + 1) - first_chunk_) * S::kWarps;
    const uint32_t warp = threadIdx.x / 32;
    Stream stream({p_, lists_, first_chunk_, near_count_}, p_.pages, p_.n_kv_head, warp,
                  near_count_, shared_.pages[warp], &shared_.full[warp]);
    stream.fetch();
    wait_for_kernels_before();
    stream.source.stored = true;
    stream.fetch();
    if (compares_) search.run();
    if (threadIdx.x == 0) barrier_.arrive();
    find_compared();
    for (uint32_t at = 0; !decided_ || at < near_count_ + far_count_;) {
      Unit unit = at < near_count_ ? near_unit(at) : decided_ ? far_unit(at) : Unit{};
      const bool early = !decided_, attended = !early || goes_first(unit);
      if (attended) attend(stream, unit);
      if (early) decide_all(stream);
      if (!attended) continue;
      if (early && !unit.fresh) forget_reused(unit);
      finish(unit);
      at += unit.end - unit.begin;
    }
    // From the last block on: the first ones have more to do.
    for (uint32_t pair = gridDim.x - 1 - blockIdx.x; pair < p_.pairs; pair += gridDim.x) {
      if (threadIdx.x != 0 || !p_.may_reuse(pair)) continue;
      barrier_.wait();  // every block has asked the guards
      count_step<D>(p_, lists_, pair, kKeyBytes);
    }
  }

 private:
  __device__ void find_rows() {
    const uint32_t batch = p_.row_of(p_.pairs);
    for (uint32_t i = threadIdx.x; i < batch; i += S::kThreads) {
      lists_.rows[i].find(p_, max(__ldcg(p_.positions + i), -1));
    }
    bool compares = false;
    for (uint32_t pair = threadIdx.x; pair < p_.pairs; pair += S::kThreads) {
      compares = compares || p_.compares(pair);
    }
    compares_ = __syncthreads_or(compares ? 1 : 0) != 0;
  }

  __device__ void find_compared() {
    for (uint32_t pair = threadIdx.x; pair < p_.pairs; pair += S::kThreads) {
      const uint32_t first = pair * p_.units, last = first + p_.units - 1;
      lists_.captured[pair] = 0;
      lists_.compared[pair] = p_.searches.owner(first) | p_.searches.owner(last) << 16;
    }
  }

  __device__ Unit near_unit(uint32_t at) const {
    const uint32_t number = first_chunk_ + at / S::kWarps;
    const Chunk chunk = Chunk::of<S>(p_, lists_, number);
    uint32_t end = chunk.end;
    if (decided_ && !chunk.fresh) end = min(end, lists_.captured_pages(chunk.pair));
    const uint32_t pages = end - min(end, chunk.begin);
    return {chunk.pair, chunk.fresh, at, at + S::kWarps, chunk.begin, pages, number};
  }

  __device__ Unit far_unit(uint32_t at) {
    const uint32_t page = far_begin_ + at - near_count_;
    while (lists_.far[far_pair_ + 1] <= page) ++far_pair_;
    const uint32_t first = lists_.far[far_pair_];
    const uint32_t end = min(far_count_, lists_.far[far_pair_ + 1] - far_begin_) + near_count_;
    const uint32_t row = p_.pairs * p_.chunks + (page == first ? far_pair_ : p_.pairs + blockIdx.x);
    const uint32_t index = lists_.row(p_, far_pair_).near + page - first;
    return {far_pair_, false, at, end, index, end - at, row};
  }

  // Whether it may be attended to before it is known which of its pages are read: a result is then
  // reused for all of a page or nothing.
  __device__ bool goes_first(const Unit& unit) const {
    return unit.end > 0 && (unit.fresh || p_.rules.align % kPageTokens == 0);
  }

  // Once all blocks have compared, if any does. All threads.
  __device__ void decide_all(Stream& stream) {
    if (compares_ && threadIdx.x == 0) barrier_.wait();
    __syncthreads();
    if (decide(p_, lists_, compares_)) {
      decode::count_pages<S>(p_.pairs, shared_.scan, lists_.far, [&](uint32_t pair) {
        const uint32_t near = lists_.row(p_, pair).near, all = lists_.captured_pages(pair);
        return all > near ? all - near : 0;
      });
      far_ = Shares(lists_.far[p_.pairs], gridDim.x);
      far_begin_ = far_.begin(blockIdx.x);
      far_count_ = far_.begin(blockIdx.x + 1) - far_begin_;
    }
    decided_ = true;
    stream.source.decided = true;
    if (far_count_ == 0) return;
    far_pair_ = decode::pair_of(lists_.far, p_.pairs, far_begin_);
    stream.source.far_begin = far_begin_;
    stream.source.far_pair = far_pair_;
    stream.extend(near_count_ + far_count_);
  }

  __device__ void attend(Stream& stream, const Unit& unit) {
    const uint32_t warp = threadIdx.x / 32;
    const Row& row = lists_.row(p_, unit.pair);
    int32_t begins[NT][2];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const uint32_t head = min(Warp<S>::head(n, side), p_.group - 1);
        begins[n][side] = unit.fresh  ? row.cut
                          : !decided_ ? row.sink
                                      : lists_.begin(p_, unit.pair, head);
      }
    }
    Warp<S> state;
    state.reset();
    uint32_t at = unit.begin + (warp + S::kWarps - unit.begin % S::kWarps) % S::kWarps;
    if (at - unit.begin < unit.pages) state.load_queries(p_.q, p_.group, unit.pair);
    for (; at < unit.end; at += S::kWarps) {
      const uint32_t i = unit.index + at - unit.begin;
      const uint32_t page = unit.fresh ? row.fresh_page(i) : row.captured_page(i);
      const int32_t end = unit.fresh ? row.position + 1 : row.cut;
      const uint32_t sinks = unit.fresh ? tokens_of(page, 0, row.sink) : 0;
      uint32_t by_head[NT][2];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          by_head[n][side] = tokens_of(page, begins[n][side], end) | sinks;
        }
      }
      stream.wait();
      if (at - unit.begin < unit.pages) {
        state.attend(p_, shared_.pages[warp], tokens_of(page, 0, row.position + 1),
                     [&](int n, int side) { return by_head[n][side]; });
      }
      stream.release();
      stream.fetch();
    }
    state.publish(p_.group, shared_.base[warp], shared_.total[warp],
                  shared_.sums() + size_t{warp} * p_.group * D);
    __syncthreads();
  }

  // Forgets the pages of a chunk that went first for which a head reuses a result. All threads.
  __device__ void forget_reused(const Unit& unit) {
    const uint32_t warp = p_.by_group.quotient(threadIdx.x);
    if (warp < unit.pages) {
      const uint32_t head = threadIdx.x - warp * p_.group;
      const uint32_t page = lists_.row(p_, unit.pair).captured_page(unit.index + warp);
      const int32_t begin = lists_.begin(p_, unit.pair, head);
      if (begin >= static_cast<int32_t>((page + 1) * kPageTokens)) {
        shared_.base[warp][head] = -INFINITY;
      }
    }
    __syncthreads();
  }

  __device__ static uint32_t chunks_of(uint32_t pages) {
    return (pages + S::kWarps - 1) / S::kWarps;
  }

  __device__ PairPieces pieces(uint32_t pair) const {
    const Row& row = lists_.row(p_, pair);
    const uint32_t captured = lists_.captured_pages(pair), first = pair * p_.chunks;
    PairPieces all;
    all.fresh = {first, first + 1, 1, chunks_of(row.fresh)};
    const uint32_t near = first + p_.fresh_chunks;
    all.near = {near, near + 1, 1, chunks_of(min(row.near, captured))};
    all.far = {0, 0, 0, 0};
    if (captured > row.near) {
      const uint32_t from = far_.owner(lists_.far[pair]);
      const uint32_t to = far_.owner(lists_.far[pair + 1] - 1), far = p_.pairs * p_.chunks;
      all.far = {far + pair, far + p_.pairs + from + 1, 1, to - from + 1};
    }
    return all;
  }

  // Once the warps have published, and it is decided what is read. All threads.
  __device__ void finish(const Unit& unit) {
    const uint32_t read = unit.fresh ? ~0u : lists_.captured_pages(unit.pair);
    if (unit.pages == 0 || unit.index >= read) return;
    for (uint32_t i = threadIdx.x * 2; i < p_.group * D; i += S::kThreads * 2) {
      decode::write_piece<D>(p_, unit.row, i, decode::merge_warps<S>(p_, shared_, i));
    }
    __syncthreads();
    const PairPieces all = pieces(unit.pair);
    if (threadIdx.x == 0) {
      shared_.last = decode::arrive(&p_.arrivals[unit.pair]) == all.count() - 1;
      if (shared_.last) p_.arrivals[unit.pair] = 0;
    }
    __syncthreads();
    if (!shared_.last) return;
    complete<D>(p_, lists_, all, unit.pair, shared_.sums());
    __syncthreads();
  }

  const Params& p_;
  decode::Shared<S>& shared_;
  Lists lists_;
  GridBarrier barrier_;
  bool decided_ = false, compares_ = false;  // compares_: any block
  Shares far_;
  uint32_t first_chunk_ = 0, near_count_ = 0;
  uint32_t far_begin_ = 0, far_count_ = 0, far_pair_ = 0;
};

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
  // Room is left for the first blocks of the next kernel while the last of these merge.
  const uint32_t all = device.multiprocessors * std::min<uint32_t>(fit, S::kBlocks);
  const uint32_t grid = all - std::min(all / 32, params.pairs);
  params.searches = Shares(params.pairs * params.units, grid);
  params.near = Shares(params.pairs * params.chunks, grid);
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

template <KvType type>
cudaError_t launch_dims(const MacArgs& args, const Params& params, cudaStream_t stream) {
  switch (args.kv.head_dim) {
    case 64:
      return launch_groups<type, 64>(params, args.overlap, stream);
    case 96:
      return launch_groups<type, 96>(params, args.overlap, stream);
    case 128:
      return launch_groups<type, 128>(params, args.overlap, stream);
    case 256:
      return launch_groups<type, 256>(params, args.overlap, stream);
    default:
      return cudaErrorNotSupported;
  }
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
  params.q = static_cast<const __nv_bfloat16*>(args.q);
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
  switch (args.kv.type) {
    case KvType::kBF16:
      return launch_dims<KvType::kBF16>(args, params, stream);
    case KvType::kF16:
      return launch_dims<KvType::kF16>(args, params, stream);
    case KvType::kFP8:
      return launch_dims<KvType::kFP8>(args, params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace reprise::kernels::cuda

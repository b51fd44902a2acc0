// Sums of the table entries that keys' codes name. A KV head of a row has so many blocks, whose
// warps take pages that are read in any case, for what softmax divides by, and then 256 keys in
// turn, or 128 of the last ones.
#include "kernels/cuda/code_parts.cuh"
#include "kernels/cuda/code_splits.cuh"
#include "kernels/cuda/code_stream.cuh"
#include "kernels/cuda/code_sums.cuh"
#include "kernels/cuda/code_tables.cuh"
#include "kernels/cuda/code_turns.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_keys.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = kScoreWarps * 32;

// Whether it is this layer's turn.
__device__ bool learns(const CodeSearchArgs& a, uint32_t row) {
  const CodedRow& own = a.rows.rows[row];
  return a.learns && a.layer >= own.learn_begin && a.layer < own.learn_end &&
         a.rows.has_in_table(code_range(a.rows.rules, a.model_layer, a.rows.positions[row]));
}

__device__ void learn(const CodeSearchArgs& a, uint32_t row, uint32_t head) {
  const CodedRow& own = a.rows.rows[row];
  const CodeShape& shape = a.rows.shape;
  const uint32_t group = a.n_head / shape.n_kv_head, parts = shape.parts();
  const __nv_bfloat16* q = a.q + (size_t{row} * a.n_head + head * group) * shape.head_dim;
  float* sums = own.moments + (shape.heads(a.layer) + head) * parts * kMoments;
  for (uint32_t part = threadIdx.x; part < parts; part += kThreads) {
    for (uint32_t i = 0; i < group; ++i) {
      const float2 two = __bfloat1622float2(
          *reinterpret_cast<const __nv_bfloat162*>(q + i * shape.head_dim + 2 * part));
      if (!isfinite(two.x * two.x + two.y * two.y)) continue;
      sums[part * kMoments] += two.x * two.x;
      sums[part * kMoments + 1] += two.x * two.y;
      sums[part * kMoments + 2] += two.y * two.y;
    }
  }
}

// A KV head of a row.
struct Place {
  const CodeSearchArgs& a;
  CodeRange range;
  uint32_t row, head, group;
  uint32_t turn;  // which of the rows that search

  __device__ uint32_t pair() const { return row * a.rows.shape.n_kv_head + head; }
  __device__ size_t first_head() const { return size_t{row} * a.n_head + head * group; }
  __device__ const __nv_bfloat16* q() const { return a.q + first_head() * a.rows.shape.head_dim; }
  __device__ size_t index() const { return a.rows.shape.heads(a.layer) + head; }
  __device__ uint32_t sink_pages() const {
    return static_cast<uint32_t>(a.rows.rules.sink) / kPageTokens;
  }
  __device__ uint32_t recent_page() const {
    return static_cast<uint32_t>(range.recent) / kPageTokens;
  }
  // Pages that are read in any case.
  __device__ uint32_t sure_pages() const {
    return sink_pages() + (static_cast<uint32_t>(range.end) + kPageTokens - 1) / kPageTokens -
           recent_page();
  }
};

// The n-th of them.
template <KvType type, uint32_t D, uint32_t kWords>
__device__ void add_page(const Place& place, uint32_t n, Parts<kWords>& parts) {
  const CodeSearchArgs& a = place.a;
  const uint32_t page = n < place.sink_pages() ? n : n - place.sink_pages() + place.recent_page();
  const uint32_t id = a.pages[size_t{place.row} * a.rows.capacity + page];
  const TileKeys<type, D> keys(key_tile(a.kv, id, place.head));
#pragma unroll
  for (uint32_t tile = 0; tile < Parts<kWords>::kTiles; ++tile) {
    EightQueries<type, D> q;
    q.load(place.q() + min(8 * tile + q.lane_query(), place.group - 1) * D);
    float logits[4];
    keys.multiply_by(q, logits);
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t token = page * kPageTokens + keys.lane_token(i / 2);
      if (static_cast<int32_t>(token) >= place.range.end) continue;
      parts.exact[tile][i % 2].add(scaled_logit(logits[i], a.scale, a.soft_cap));
    }
  }
}

template <uint32_t D, uint32_t kWords>
__device__ void add_page(const Place& place, uint32_t n, Parts<kWords>& parts) {
  if (place.a.kv.type == KvType::kBF16) return add_page<KvType::kBF16, D>(place, n, parts);
  if (place.a.kv.type == KvType::kF16) return add_page<KvType::kF16, D>(place, n, parts);
  add_page<KvType::kFP8, D>(place, n, parts);
}

template <uint32_t D, uint32_t kWords>
struct Shared {
  CodeRing rings[kScoreWarps];
  alignas(256) CodeTables<D, kWords, kThreads> tables;
  Part parts[kScoreWarps][2][4 * kWords];
};

// Codes of a KV head from half a unit on, but for where the half begins in its block's planes.
template <uint32_t kHalfKeys>
__device__ inline const uint8_t* codes_of(const Place& place, uint32_t half) {
  const CodedRows& rows = place.a.rows;
  const size_t block = half / (kCodeBlock / kHalfKeys);
  const uint32_t id = rows.blocks[size_t{place.row} * rows.block_capacity + block];
  return rows.codes + id * rows.shape.block_bytes() + place.index() * rows.shape.plane_bytes();
}

// Tops of the pages of a unit. scales: of the lane's heads, as Parts has them.
template <uint32_t kKeys, uint32_t kWords, uint32_t kWordBytes>
__device__ __forceinline__ void keep_tops(const Place& place, uint32_t first_page,
                                          const CodeSums<kKeys, kWords, kWordBytes>& sums,
                                          const float2 (&scales)[kWords], Parts<kWords>& parts) {
  using Sums = CodeSums<kKeys, kWords, kWordBytes>;
  const CodeSearchArgs& a = place.a;
  const uint32_t lane = threadIdx.x % 32, pairs = a.rows.count * a.rows.shape.n_kv_head;
  const auto competes = [&](uint32_t page) {
    return page >= place.sink_pages() && page < place.recent_page();
  };
#pragma unroll
  for (uint32_t word = 0; word < kWords; ++word) {
    uint2* tops = a.tops + (size_t{word} * pairs + place.pair()) * a.rows.capacity;
#pragma unroll
    for (uint32_t part = 0; part < Sums::kParts; ++part) {
      const uint32_t two = sums.top(word, part), other = __shfl_xor_sync(~0u, two, 8);
      const uint32_t page = first_page + lane % 4 * (Sums::kPages / 4) + 2 * part;
      if (lane < 8) {  // heads lane / 4 and that + 2
        uint32_t* to = reinterpret_cast<uint32_t*>(tops + page) + lane / 4;
        if (competes(page)) to[0] = __byte_perm(two, other, 0x5410);
        if (competes(page + 1)) to[2] = __byte_perm(two, other, 0x7632);
      }
      const auto sum = static_cast<float>(lane < 16 ? two & 0xffffu : two >> 16);
      const float logit = scaled_logit(scales[word].x + scales[word].y * sum, 1.0f, a.soft_cap);
      if (competes(page + lane / 16)) parts.coded[word].add(logit);
    }
  }
}

// A unit, or half of one, of which a lane has kKeys keys, the first of them in column of planes.
template <uint32_t kKeys, uint32_t D, uint32_t kWords, typename Stream>
__device__ __forceinline__ void score_unit(const Place& place, uint32_t first_page, uint32_t column,
                                           const ByteAdder& adder, const Shared<D, kWords>& s,
                                           Stream& stream, const float2 (&scales)[kWords],
                                           Parts<kWords>& parts) {
  constexpr uint32_t kPlaneTables = 2 * kCodeEntries * 4;
  CodeSums<kKeys, kWords, sizeof s.tables.entries[0]> sums;
  uint32_t tables = shared_address(s.tables.entries);
  const uint32_t* offsets = s.tables.offsets;
  for (uint32_t sixteen = 0; sixteen * CodeRing::kPlanes < D / 4; ++sixteen) {
    const uint8_t* codes = stream.wait() + column - sixteen * CodeRing::kSlotBytes;
    const uint32_t planes = s.tables.used_of(sixteen);
#pragma unroll 4
    for (uint32_t plane = 0; plane < planes; plane += 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(offsets + plane);
      sums.add(adder, tables + plane * kPlaneTables, codes + two.x, codes + two.y);
    }
    stream.release();
    tables += planes * kPlaneTables;
    offsets += planes;
  }
  keep_tops(place, first_page, sums, scales, parts);
}

template <uint32_t D, uint32_t kWords, typename Stream>
__device__ __forceinline__ void score_units(const Place& place, const WarpUnits& units,
                                            const Shared<D, kWords>& s, Stream& stream,
                                            Parts<kWords>& parts) {
  constexpr uint32_t kKeys = lane_keys(kWords), kHalfKeys = 32 * kKeys / 2;
  const uint32_t lane = threadIdx.x % 32;
  const ByteAdder adder;
  float2 scales[kWords];
  for (uint32_t word = 0; word < kWords; ++word) {
    const uint32_t head = 4 * word + lane % 16 / 4;
    scales[word] = {s.tables.low[head], s.tables.step[head]};
  }
  for (uint32_t n = 0; n < units.count(); ++n) {
    const uint32_t half = units.begin(n), page = half * (kHalfKeys / kPageTokens);
    const uint32_t column = half * kHalfKeys % kCodeBlock;
    if (kKeys == 8 && units.is_half(n)) {
      score_unit<4>(place, page, column + lane * 4, adder, s, stream, scales, parts);
    } else {
      score_unit<kKeys>(place, page, column + lane * kKeys, adder, s, stream, scales, parts);
    }
  }
}

// Codes and centroids are fetched beside kernels before, which queries come from.
template <uint32_t D, uint32_t kWords>
__device__ __forceinline__ void score(const Place& place, uint32_t split, uint32_t splits,
                                      Shared<D, kWords>& s) {
  constexpr uint32_t kUnitKeys = 32 * lane_keys(kWords), kUnitPages = kUnitKeys / kPageTokens;
  const CodeSearchArgs& a = place.a;
  const uint32_t warp = threadIdx.x / 32, warps = splits * kScoreWarps;
  const uint32_t index = split * kScoreWarps + warp, sure = place.sure_pages();
  const WarpUnits units((place.recent_page() + kUnitPages - 1) / kUnitPages, warps, index,
                        kUnitKeys == kCodeBlock);
  const uint32_t turn = place.turn * a.rows.shape.n_kv_head + place.head;
  float2* out = a.parts + (size_t{turn} * splits + split) * place.group;
  // Pages that are read in any case go to the last warps, which have least to do.
  if (__syncthreads_and(units.count() == 0 && warps - 1 - index >= sure)) {
    wait_for_kernels_before();
    if (threadIdx.x < place.group) out[threadIdx.x] = {-INFINITY, 0.0f};
    return;
  }
  const float* book = a.rows.rows[place.row].book + place.index() * (D / 2) * kBookPart;
  const typename CodeTables<D, kWords, kThreads>::Centroids first_centroids(book);
  const auto block_of = [&](uint32_t n) { return codes_of<kUnitKeys / 2>(place, units.begin(n)); };
  CodeStream<D / 4, decltype(block_of)> stream(s.rings[warp], units.count(), block_of);
  wait_for_kernels_before();
  s.tables.make(place.q(), a.scale, place.group, book, first_centroids, a.rows.rules.skip);
  if (split == 0 && threadIdx.x < place.group) {
    a.scales[place.first_head() + threadIdx.x] = {s.tables.low[threadIdx.x],
                                                  s.tables.step[threadIdx.x]};
  }
  Parts<kWords> parts;
  for (uint32_t n = warps - 1 - index; n < sure; n += warps) add_page<D>(place, n, parts);
  score_units(place, units, s, stream, parts);
  parts.publish(s.parts[warp][0]);
  __syncthreads();
  merge_parts<kWords>(s.parts, place.group, out);
}

template <uint32_t D, uint32_t kWords>
__device__ __forceinline__ void score(const CodeSearchArgs& a, const Turn& turn, uint32_t head,
                                      Shared<D, kWords>& s) {
  if (turn.index >= turn.count) return;
  const CodedRow& own = a.rows.rows[turn.row];
  const CodeRange range = code_range(a.rows.rules, a.model_layer, a.rows.positions[turn.row]);
  if (!a.rows.has_in_table(range) || own.book == nullptr || a.layer >= own.ready ||
      !range.chooses) {
    return;
  }
  const uint32_t group = a.n_head / a.rows.shape.n_kv_head;
  score(Place{a, range, turn.row, head, group, turn.index}, turn.split, turn.splits, s);
}

template <uint32_t D, uint32_t kWords>
__global__ __launch_bounds__(kThreads, kScoreBlocks) void score_kernel(
    const __grid_constant__ CodeSearchArgs a, uint32_t splits) {
  extern __shared__ __align__(256) unsigned char memory[];
  allow_next_kernel();
  if (a.due != nullptr) wait_for_kernels_before();  // which may just have found who is due
  const uint32_t n_kv_head = a.rows.shape.n_kv_head, head = blockIdx.x % n_kv_head;
  const uint32_t learner = blockIdx.x / n_kv_head / splits;
  const bool is_learner = blockIdx.x / n_kv_head % splits == 0 && learns(a, learner);
  score(a, Turn(a, splits), head, *reinterpret_cast<Shared<D, kWords>*>(memory));
  wait_for_kernels_before();  // those that scored nothing
  if (is_learner) learn(a, learner, head);
}

template <uint32_t D, uint32_t kWords>
cudaError_t launch(const CodeSearchArgs& args, cudaStream_t stream) {
  const uint32_t splits = code_splits(args), pairs = args.rows.count * args.rows.shape.n_kv_head;
  if (const cudaError_t status = allow_all_shared(score_kernel<D, kWords>); status != cudaSuccess) {
    return status;
  }
  return launch_overlapped(score_kernel<D, kWords>, dim3(pairs * splits), kThreads,
                           sizeof(Shared<D, kWords>), stream, args, splits);
}

}  // namespace

size_t code_parts(uint32_t max_count, uint32_t n_head, uint32_t n_kv_head) {
  const uint32_t group = n_head / n_kv_head;
  const size_t blocks = device_limits().multiprocessors * kScoreBlocks;
  return std::max(blocks, size_t{max_count} * n_kv_head) * group;
}

cudaError_t score_coded(const CodeSearchArgs& args, cudaStream_t stream) {
  if (args.rows.count == 0) return cudaSuccess;
  const uint32_t group = args.n_head / args.rows.shape.n_kv_head;
  if (group < 1 || group > 16) return cudaErrorNotSupported;
  return with_head_dim(args.rows.shape.head_dim, [&](auto dim) {
    switch (code_words(group)) {
      case 1:
        return launch<dim, 1>(args, stream);
      case 2:
        return launch<dim, 2>(args, stream);
      default:
        return launch<dim, 4>(args, stream);
    }
  });
}

}  // namespace reprise::kernels::cuda

// Sums of the table entries that keys' codes name. A KV head of a row has so many blocks, whose
// warps take pages that are read in any case, for what softmax divides by, and then 256 keys in
// turn. Lanes have eight keys: a lookup of 32 lanes hits 16 words of shared memory, which never
// share a bank.
#include "kernels/cuda/code_splits.cuh"
#include "kernels/cuda/code_tables.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_keys.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = kScoreWarps * 32;
constexpr uint32_t kLaneKeys = kCodeBlock / 32;

// Bytes 1 and 3 as 16 bits each.
__device__ inline uint32_t odd_bytes(uint32_t word) { return __byte_perm(word, 0, 0x4341); }

// a + b by the pipe that multiplies: the other one is what these kernels wait for. one is 1, which
// the compiler must not know.
__device__ inline uint32_t add_multiplying(uint32_t a, uint32_t b, uint32_t one) {
  uint32_t sum;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(one), "r"(b));
  return sum;
}

// The entry that byte `key` of codes names, of a word's tables. The byte is the lowest of an
// address in shared memory that base gives the rest of.
template <uint32_t offset>
__device__ inline uint32_t look_up(uint32_t codes, uint32_t base, uint32_t key) {
  uint32_t entry;
  asm volatile("ld.shared.u32 %0, [%1+%2];"
               : "=r"(entry)
               : "r"(__byte_perm(codes, base, 0x7650 + key)), "n"(offset));
  return entry;
}

// Sums of the entries that codes of two planes name; base: the address of the first one's tables.
template <uint32_t kWords, uint32_t kWordBytes>
struct CodeSums {
  // Of four heads: all bytes summed up as one number, and the odd bytes.
  uint32_t all[kWords][kLaneKeys] = {}, odd[kWords][kLaneKeys] = {};

  __device__ __forceinline__ void add(uint32_t base, uint2 first, uint2 second, uint32_t one) {
    add_half<0>(base, first.x, second.x, one);
    add_half<4>(base, first.y, second.y, one);
  }

  // Of four keys.
  template <uint32_t first_key>
  __device__ __forceinline__ void add_half(uint32_t base, uint32_t a, uint32_t b, uint32_t one) {
    constexpr uint32_t kCodes = 0x3c3c3c3c;
    const uint32_t a_low = a << 2 & kCodes, a_high = masked_or(a >> 2, kCodes, 0x40404040);
    const uint32_t b_low = masked_or(b << 2, kCodes, 0x80808080);
    const uint32_t b_high = masked_or(b >> 2, kCodes, 0xc0c0c0c0);
    add_word<first_key, 0>(base, a_low, a_high, b_low, b_high, one);
    if constexpr (kWords > 1) add_word<first_key, 1>(base, a_low, a_high, b_low, b_high, one);
    if constexpr (kWords > 2) {
      add_word<first_key, 2>(base, a_low, a_high, b_low, b_high, one);
      add_word<first_key, 3>(base, a_low, a_high, b_low, b_high, one);
    }
  }

  template <uint32_t first_key, uint32_t word>
  __device__ __forceinline__ void add_word(uint32_t base, uint32_t a_low, uint32_t a_high,
                                           uint32_t b_low, uint32_t b_high, uint32_t one) {
    constexpr uint32_t kOffset = word * kWordBytes;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t x =
          add_multiplying(look_up<kOffset>(a_low, base, i), look_up<kOffset>(a_high, base, i), one);
      const uint32_t y =
          add_multiplying(look_up<kOffset>(b_low, base, i), look_up<kOffset>(b_high, base, i), one);
      uint32_t& sum = all[word][first_key + i];
      sum = add_multiplying(x, add_multiplying(y, sum, one), one);
      odd[word][first_key + i] += odd_bytes(x) + odd_bytes(y);
    }
  }

  // The largest of a page, which two lanes share. x has heads 0 and 2, y heads 1 and 3.
  __device__ uint2 top(uint32_t word) const {
    uint2 best = {};
    for (uint32_t key = 0; key < kLaneKeys; ++key) {
      best.x = __vmaxu2(best.x, all[word][key] - (odd[word][key] << 8));
      best.y = __vmaxu2(best.y, odd[word][key]);
    }
    best.x = __vmaxu2(best.x, __shfl_xor_sync(~0u, best.x, 1));
    best.y = __vmaxu2(best.y, __shfl_xor_sync(~0u, best.y, 1));
    return best;
  }
};

__device__ void learn(const CodeSearchArgs& a, const CodedRow& own, uint32_t row, uint32_t head) {
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

// Softmax's base and sum, in units of log2.
struct Part {
  float base = -INFINITY, sum = 0.0f;

  __device__ void add(float logit) {
    const float top = fmaxf(base, logit);
    sum = sum * exp2_fast(base - top) + exp2_fast(logit - top);
    base = top;
  }
  __device__ void add(const Part& other) {
    const float top = fmaxf(base, other.base);
    if (top == -INFINITY) return;
    sum = sum * exp2_fast(base - top) + other.sum * exp2_fast(other.base - top);
    base = top;
  }
  // Of lanes that differ in the bits from mask on.
  __device__ void merge_lanes(int mask) {
    for (; mask < 32; mask *= 2) {
      add(Part{__shfl_xor_sync(~0u, base, mask), __shfl_xor_sync(~0u, sum, mask)});
    }
  }
};

// What a warp knows of all query heads.
template <uint32_t kWords>
struct Parts {
  static constexpr uint32_t kTiles = (kWords + 1) / 2;
  Part exact[kTiles][2];  // of the lane's heads: 8 tile + lane % 4 * 2 and the next
  Part coded[kWords][2];  // 4 word + lane % 2 and that + 2

  // to: [2][4 kWords]
  __device__ void publish(Part* to) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = 0; i < 2; ++i) {
      for (uint32_t tile = 0; tile < kTiles; ++tile) {
        exact[tile][i].merge_lanes(4);
        const uint32_t head = 8 * tile + 2 * lane + i;
        if (lane < 4 && head < 4 * kWords) to[head] = exact[tile][i];
      }
      for (uint32_t word = 0; word < kWords; ++word) {
        coded[word][i].merge_lanes(2);
        if (lane < 2) to[4 * kWords + 4 * word + lane + 2 * i] = coded[word][i];
      }
    }
  }
};

// A KV head of a row.
struct Place {
  const CodeSearchArgs& a;
  CodeRange range;
  uint32_t row, head, group;

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
  CodeTables<D, kWords, kThreads> tables;
  Part parts[kScoreWarps][2][4 * kWords];
};

// Of a KV head's block.
__device__ inline const uint8_t* codes_of(const Place& place, uint32_t block) {
  const CodedRows& rows = place.a.rows;
  const uint32_t id = rows.blocks[size_t{place.row} * rows.block_capacity + block];
  return rows.codes + id * rows.shape.block_bytes() + place.index() * rows.shape.plane_bytes();
}

// The pages of a block of codes.
template <uint32_t D, uint32_t kWords>
__device__ __forceinline__ void score_block(const Place& place, uint32_t block, uint32_t one,
                                            const Shared<D, kWords>& s, Parts<kWords>& parts) {
  const CodeSearchArgs& a = place.a;
  const CodeShape& shape = a.rows.shape;
  const uint32_t lane = threadIdx.x % 32, used = s.tables.planes_used();
  const uint8_t* codes = codes_of(place, block) + lane * kLaneKeys;
  const uint32_t tables = shared_address(s.tables.entries);
  CodeSums<kWords, sizeof s.tables.entries[0]> sums;
  const auto load = [&](uint32_t plane) {
    return __ldg(reinterpret_cast<const uint2*>(codes + s.tables.offsets[plane]));
  };
  uint2 first = load(0), second = load(1);
#pragma unroll 2
  for (uint32_t plane = 0; plane < used; plane += 2) {
    const uint32_t next = plane + 2 < used ? plane + 2 : 0;  // on its way meanwhile
    const uint2 next_first = load(next), next_second = load(next + 1);
    sums.add(tables + plane * 2 * kCodeEntries * 4, first, second, one);
    first = next_first;
    second = next_second;
  }
  const uint32_t page = block * kBlockPages + lane / 2;
  const uint32_t pairs = a.rows.count * shape.n_kv_head;
#pragma unroll
  for (uint32_t word = 0; word < kWords; ++word) {
    const uint2 top = sums.top(word);
    if (page < place.sink_pages() || page >= place.recent_page()) continue;
    if (lane % 2 == 0) a.tops[(size_t{word} * pairs + place.pair()) * a.rows.capacity + page] = top;
    const uint32_t own = lane % 2 == 0 ? top.x : top.y;
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t head = 4 * word + lane % 2 + 2 * i;
      const float sum = static_cast<float>(i == 0 ? own & 0xffffu : own >> 16);
      const float logit = s.tables.low[head] + s.tables.step[head] * sum;
      parts.coded[word][i].add(scaled_logit(logit, 1.0f, a.soft_cap));
    }
  }
}

template <uint32_t D, uint32_t kWords>
__device__ __forceinline__ void score(const Place& place, uint32_t split, uint32_t splits,
                                      uint32_t one, Shared<D, kWords>& s) {
  const CodeSearchArgs& a = place.a;
  const uint32_t sure = place.sure_pages();
  const uint32_t units = sure + (place.recent_page() + kBlockPages - 1) / kBlockPages;
  float2* out = a.parts + (size_t{place.pair()} * splits + split) * place.group;
  if (split * kScoreWarps >= units) {
    if (threadIdx.x < place.group) out[threadIdx.x] = {-INFINITY, 0.0f};
    return;
  }
  const uint32_t warp = threadIdx.x / 32, step = splits * kScoreWarps;
  const uint32_t first = split * kScoreWarps + warp;
  s.tables.make(place.q(), a.scale, place.group,
                a.rows.rows[place.row].book + place.index() * (D / 2) * kBookPart,
                a.rows.rules.skip);
  if (split == 0 && threadIdx.x < place.group) {
    a.scales[place.first_head() + threadIdx.x] = {s.tables.low[threadIdx.x],
                                                  s.tables.step[threadIdx.x]};
  }
  Parts<kWords> parts;
  for (uint32_t unit = first; unit < units; unit += step) {
    if (unit < sure) {
      add_page<D>(place, unit, parts);
    } else {
      score_block(place, unit - sure, one, s, parts);
    }
  }
  parts.publish(s.parts[warp][0]);
  __syncthreads();
  if (threadIdx.x >= place.group) return;
  Part all;
  for (uint32_t i = 0; i < 2 * kScoreWarps; ++i) all.add(s.parts[i / 2][i % 2][threadIdx.x]);
  out[threadIdx.x] = {all.base, all.sum};
}

template <uint32_t D, uint32_t kWords>
__global__ __launch_bounds__(kThreads, score_blocks(kWords)) void score_kernel(
    const __grid_constant__ CodeSearchArgs a, uint32_t splits, uint32_t one) {
  __shared__ __align__(256) unsigned char memory[sizeof(Shared<D, kWords>)];  // no constructors
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t n_kv_head = a.rows.shape.n_kv_head;
  const uint32_t head = blockIdx.x % n_kv_head, split = blockIdx.x / n_kv_head % splits;
  const uint32_t row = blockIdx.x / n_kv_head / splits;
  const CodedRow& own = a.rows.rows[row];
  const CodeRange range = code_range(a.rows.rules, a.model_layer, a.rows.positions[row]);
  if (range.end <= 0 || range.end > static_cast<int32_t>(a.rows.capacity * kPageTokens)) return;
  if (split == 0 && a.learns && own.learn_begin <= a.layer && a.layer < own.learn_end) {
    learn(a, own, row, head);
  }
  if (own.book == nullptr || a.layer >= own.ready || !range.chooses) return;
  const Place place = {a, range, row, head, a.n_head / n_kv_head};
  score(place, split, splits, one, *reinterpret_cast<Shared<D, kWords>*>(memory));
}

template <uint32_t D, uint32_t kWords>
cudaError_t launch(const CodeSearchArgs& args, cudaStream_t stream) {
  const uint32_t splits = code_splits(args), pairs = args.rows.count * args.rows.shape.n_kv_head;
  return launch_overlapped(score_kernel<D, kWords>, dim3(pairs * splits), kThreads, stream, args,
                           splits, 1u);
}

}  // namespace

size_t code_parts(uint32_t max_count, uint32_t n_head, uint32_t n_kv_head) {
  const uint32_t group = n_head / n_kv_head;
  const size_t blocks = device_limits().multiprocessors * score_blocks(code_words(group));
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

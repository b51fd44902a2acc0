#include <algorithm>
#include <cmath>

#include "kernels/cuda/kv_load.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/row_scores.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 128, kSumThreads = 256;
constexpr uint32_t kTileRows = 32, kTileKeys = 32, kTileDims = 32;
constexpr uint32_t kOwnRows = 4, kOwnKeys = 2;  // of a thread

__device__ const unsigned char* tile_of_key(const PagedKv& kv, const uint32_t* pages, uint32_t key,
                                            uint32_t kv_head) {
  return key_tile(kv, pages[key / kPageTokens], kv_head);
}

// Some dimensions of a tile of keys, and of the queries of a tile of rows, summed over the heads
// that share a KV head: q.k summed over heads is linear in q.
struct Operands {
  static constexpr uint32_t kPairs = kTileDims / 2, kStep = kThreads / kPairs;
  float q[kTileDims][kTileRows + 4];
  float k[kTileDims][kTileKeys + 4];

  __device__ void load(const QuestionScoresArgs& a, uint32_t row, uint32_t key, uint32_t first) {
    const uint32_t head_dim = a.kv.head_dim, kv_head = first / head_dim;
    const uint32_t in_head = first % head_dim, group = a.n_head / a.kv.n_kv_head;
    // A thread's loads are all under way before it stores any: they are what takes time.
    const uint32_t own = threadIdx.x / kPairs, dim = threadIdx.x % kPairs * 2;
    float2 sums[kTileRows / kStep] = {}, keys[kTileKeys / kStep];
#pragma unroll
    for (uint32_t i = 0; i < kTileKeys / kStep; ++i) {
      const uint32_t known = min(key + own + i * kStep, a.keys - 1);
      keys[i] = load_two(a.kv.type, tile_of_key(a.kv, a.pages, known, kv_head), head_dim,
                         known % kPageTokens, in_head + dim);
    }
    for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
#pragma unroll
      for (uint32_t i = 0; i < kTileRows / kStep; ++i) {
        const uint32_t known = min(row + own + i * kStep, a.rows - 1);
        const size_t at = (size_t{known} * a.n_head + head) * head_dim + in_head + dim;
        const float2 two = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(a.q + at));
        sums[i] = {sums[i].x + two.x, sums[i].y + two.y};
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kTileRows / kStep; ++i) {
      q[dim][own + i * kStep] = sums[i].x;
      q[dim + 1][own + i * kStep] = sums[i].y;
    }
#pragma unroll
    for (uint32_t i = 0; i < kTileKeys / kStep; ++i) {
      k[dim][own + i * kStep] = keys[i].x;
      k[dim + 1][own + i * kStep] = keys[i].y;
    }
  }
};

// Logits of kTileRows x kTileKeys, four by two a thread; -inf where a key does not count.
__global__ __launch_bounds__(kThreads) void logits_kernel(
    const __grid_constant__ QuestionScoresArgs a) {
  __shared__ Operands operands;
  const uint32_t key = blockIdx.x * kTileKeys, row = blockIdx.y * kTileRows;
  constexpr uint32_t kColumns = kTileKeys / kOwnKeys;  // of threads
  const uint32_t own_key = threadIdx.x % kColumns * kOwnKeys;
  const uint32_t own_row = threadIdx.x / kColumns * kOwnRows;
  float sums[kOwnRows][kOwnKeys] = {};
  for (uint32_t first = 0; first < a.kv.n_kv_head * a.kv.head_dim; first += kTileDims) {
    __syncthreads();
    operands.load(a, row, key, first);
    __syncthreads();
#pragma unroll 8
    for (uint32_t dim = 0; dim < kTileDims; ++dim) {
      const float4 q = *reinterpret_cast<const float4*>(&operands.q[dim][own_row]);
      const float2 k = *reinterpret_cast<const float2*>(&operands.k[dim][own_key]);
      const float of_rows[] = {q.x, q.y, q.z, q.w}, of_keys[] = {k.x, k.y};
#pragma unroll
      for (uint32_t r = 0; r < kOwnRows; ++r) {
#pragma unroll
        for (uint32_t c = 0; c < kOwnKeys; ++c)
          sums[r][c] = fmaf(of_rows[r], of_keys[c], sums[r][c]);
      }
    }
  }
  for (uint32_t r = 0; r < kOwnRows && row + own_row + r < a.rows; ++r) {
    const uint32_t at = row + own_row + r;
    const int32_t position = a.positions[at];
    for (uint32_t c = 0; c < kOwnKeys && key + own_key + c < a.keys; ++c) {
      const auto of = static_cast<int32_t>(key + own_key + c);
      const bool counts = a.candidates[of] != 0 || (of >= a.first_own && of <= position);
      a.workspace[size_t{at} * a.keys + static_cast<uint32_t>(of)] =
          counts ? sums[r][c] * a.scale : -INFINITY;
    }
  }
}

// Over all threads of a block of kSumThreads.
template <typename Combine>
__device__ float over_block(float value, Combine&& combine) {
  __shared__ float parts[kSumThreads / 32];
  for (int mask = 16; mask > 0; mask /= 2) {
    value = combine(value, __shfl_xor_sync(~0u, value, mask));
  }
  __syncthreads();  // of the call before
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (uint32_t i = 1; i < kSumThreads / 32; ++i) value = combine(value, parts[i]);
  return value;
}

// The log of the sum of a row's weights; a row sees itself, so that it is finite.
__global__ __launch_bounds__(kSumThreads) void row_sums_kernel(const float* logits, uint32_t keys,
                                                               float* log_sums) {
  const float* row = logits + size_t{blockIdx.x} * keys;
  float largest = -INFINITY, sum = 0.0f;
  for (uint32_t i = threadIdx.x; i < keys; i += kSumThreads) largest = fmaxf(largest, row[i]);
  largest = over_block(largest, [](float x, float y) { return fmaxf(x, y); });
  for (uint32_t i = threadIdx.x; i < keys; i += kSumThreads) sum += expf(row[i] - largest);
  sum = over_block(sum, [](float x, float y) { return x + y; });
  if (threadIdx.x == 0) log_sums[blockIdx.x] = largest + logf(sum);
}

__global__ __launch_bounds__(kSumThreads) void key_sums_kernel(const float* logits, uint32_t rows,
                                                               uint32_t keys, const float* log_sums,
                                                               float* scores) {
  const uint32_t key = blockIdx.x * kSumThreads + threadIdx.x;
  if (key >= keys) return;
  float sum = 0.0f;
  for (uint32_t row = 0; row < rows; ++row) {
    sum += expf(logits[size_t{row} * keys + key] - log_sums[row]);
  }
  scores[key] += sum;
}

// Logits of some heads of one launch.
struct HeadRange {
  uint32_t first = 0, count = 0;
};

// [n_kv_head, keys] norms, then [heads, rows, keys] logits, then [heads, rows] logs of their sums.
struct HeadRoom {
  float *norms, *logits, *log_sums;
};

constexpr size_t kMostLogits = 16u << 20u;  // that are held at once
constexpr uint32_t kRowTiles = kScoredRows / 16, kPagesOfBlock = 16;

__host__ __device__ constexpr uint32_t row_tiles(uint32_t rows) { return (rows + 15) / 16; }
// Rows of queries begin in different banks of shared memory.
__host__ __device__ constexpr uint32_t query_stride(uint32_t head_dim) { return head_dim + 8; }

uint32_t heads_at_once(uint32_t rows, uint32_t n_head, uint32_t keys) {
  const size_t of_head = size_t{rows} * keys;
  return static_cast<uint32_t>(
      std::clamp<size_t>(kMostLogits / std::max<size_t>(of_head, 1), 1, n_head));
}

// Keys of a page and all rows, of one head; a warp's. queries: [rows, stride] in shared memory.
__device__ void page_logits(const HeadScoresArgs& a, uint32_t head, uint32_t page,
                            const __nv_bfloat16* queries, uint32_t stride, float* logits) {
  const uint32_t key = page * kPageTokens, head_dim = a.kv.head_dim;
  const unsigned char* tile = key_tile(a.kv, a.pages[page], head / (a.n_head / a.kv.n_kv_head));
  const uint32_t line = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;  // of a fragment
  float sums[kRowTiles][2][4] = {};
#pragma unroll 4
  for (uint32_t dim = 0; dim < head_dim; dim += 16) {
    uint32_t k[2][2];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float2 two =
          load_two(a.kv.type, tile, head_dim, i / 2 * 8 + line, dim + i % 2 * 8 + pair);
      k[i / 2][i % 2] = pack<__nv_bfloat16>(two.x, two.y);
    }
#pragma unroll
    for (uint32_t t = 0; t < kRowTiles; ++t) {
      if (t * 16 >= a.rows) break;
      uint32_t q[4];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = t * 16 + i % 2 * 8 + line;
        q[i] = *reinterpret_cast<const uint32_t*>(queries + row * stride + dim + i / 2 * 8 + pair);
      }
      multiply<__nv_bfloat16>(sums[t][0], q, k[0]);
      multiply<__nv_bfloat16>(sums[t][1], q, k[1]);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kRowTiles * 8; ++i) {
    const uint32_t row = i / 8 * 16 + i % 4 / 2 * 8 + line;
    const uint32_t at = key + i / 4 % 2 * 8 + pair + i % 2;
    if (row >= a.rows || at >= a.keys) continue;
    float logit = sums[i / 8][i / 4 % 2][i % 4] * a.scale;
    if (a.soft_cap > 0.0f) logit = a.soft_cap * tanhf(logit / a.soft_cap);
    const bool seen = static_cast<int32_t>(at) <= a.positions[row];
    logits[size_t{row} * a.keys + at] = seen ? logit : -INFINITY;
  }
}

// A block has some pages of one head, and that head's queries in shared memory.
__global__ __launch_bounds__(kThreads) void head_logits_kernel(
    const __grid_constant__ HeadScoresArgs a, HeadRange heads, float* logits) {
  extern __shared__ __align__(16) __nv_bfloat16 queries[];  // [rows in tiles, query_stride()]
  const uint32_t head = heads.first + blockIdx.y, head_dim = a.kv.head_dim;
  const uint32_t stride = query_stride(head_dim), chunks = head_dim / 8;
  for (uint32_t i = threadIdx.x; i < row_tiles(a.rows) * 16 * chunks; i += kThreads) {
    const uint32_t row = i / chunks, dim = i % chunks * 8;
    const size_t at = (size_t{row} * a.n_head + head) * head_dim + dim;
    *reinterpret_cast<uint4*>(queries + row * stride + dim) =
        row < a.rows ? *reinterpret_cast<const uint4*>(a.q + at) : uint4{};
  }
  __syncthreads();
  logits += size_t{blockIdx.y} * a.rows * a.keys;
  for (uint32_t i = threadIdx.x / 32; i < kPagesOfBlock; i += kThreads / 32) {
    const uint32_t page = blockIdx.x * kPagesOfBlock + i;
    if (page * kPageTokens < a.keys) page_logits(a, head, page, queries, stride, logits);
  }
}

__global__ __launch_bounds__(kSumThreads) void value_norms_kernel(
    const __grid_constant__ HeadScoresArgs a, float* norms) {
  const uint32_t key = blockIdx.x * kSumThreads + threadIdx.x, head_dim = a.kv.head_dim;
  if (key >= a.keys) return;
  const unsigned char* values =
      tile_of_key(a.kv, a.pages, key, blockIdx.y) + tile_bytes(a.kv.type, head_dim);
  float sum = 0.0f;
  for (uint32_t dim = 0; dim < head_dim; dim += 2) {
    const float2 two = load_two(a.kv.type, values, head_dim, key % kPageTokens, dim);
    sum += two.x * two.x + two.y * two.y;
  }
  norms[size_t{blockIdx.y} * a.keys + key] = sqrtf(sum);
}

// A warp adds up some of the heads for 32 keys; what warps have is added in their order.
__global__ __launch_bounds__(kSumThreads) void head_sums_kernel(
    const __grid_constant__ HeadScoresArgs a, HeadRange heads, HeadRoom room) {
  constexpr uint32_t kWarps = kSumThreads / 32;
  __shared__ float parts[kWarps][32];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, key = blockIdx.x * 32 + lane;
  float sum = 0.0f;
  for (uint32_t head = warp; head < heads.count && key < a.keys; head += kWarps) {
    float weights = 0.0f;
    for (uint32_t row = 0; row < a.rows; ++row) {
      const size_t at = size_t{head} * a.rows + row;
      weights += expf(room.logits[at * a.keys + key] - room.log_sums[at]);
    }
    const uint32_t kv_head = (heads.first + head) / (a.n_head / a.kv.n_kv_head);
    sum += weights * room.norms[size_t{kv_head} * a.keys + key];
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || key >= a.keys) return;
  for (uint32_t i = 1; i < kWarps; ++i) sum += parts[i][lane];
  a.scores[key] += sum;
}

__global__ __launch_bounds__(kSumThreads) void deviation_kernel(
    const __grid_constant__ ValueDeviationArgs a) {
  const uint32_t head_dim = a.kv.head_dim, pairs = a.kv.n_kv_head * head_dim / 2;
  const auto key = static_cast<uint32_t>(a.positions[blockIdx.x]);
  const auto* fresh = reinterpret_cast<const float2*>(a.v) + size_t{blockIdx.x} * pairs;
  float sum = 0.0f;
  for (uint32_t i = threadIdx.x; i < pairs; i += kSumThreads) {
    const uint32_t kv_head = i / (head_dim / 2), dim = i % (head_dim / 2) * 2;
    const unsigned char* values =
        tile_of_key(a.kv, a.pages, key, kv_head) + tile_bytes(a.kv.type, head_dim);
    const float2 stored = load_two(a.kv.type, values, head_dim, key % kPageTokens, dim);
    const float2 off = {fresh[i].x - stored.x, fresh[i].y - stored.y};
    sum += off.x * off.x + off.y * off.y;
  }
  sum = over_block(sum, [](float x, float y) { return x + y; });
  if (threadIdx.x == 0) a.out[blockIdx.x] = sum;
}

}  // namespace

size_t question_scores_workspace(uint32_t rows, uint32_t keys) {
  return size_t{std::min(rows, kScoredRows)} * (size_t{keys} + 1);
}

cudaError_t question_logits(const QuestionScoresArgs& args, cudaStream_t stream) {
  if (args.kv.head_dim % kTileDims != 0) return cudaErrorNotSupported;
  if (args.rows == 0) return cudaSuccess;
  const dim3 tiles((args.keys + kTileKeys - 1) / kTileKeys,
                   (args.rows + kTileRows - 1) / kTileRows);
  logits_kernel<<<tiles, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t question_weights(const QuestionScoresArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  float* log_sums = args.workspace + size_t{args.rows} * args.keys;
  row_sums_kernel<<<args.rows, kSumThreads, 0, stream>>>(args.workspace, args.keys, log_sums);
  key_sums_kernel<<<(args.keys + kSumThreads - 1) / kSumThreads, kSumThreads, 0, stream>>>(
      args.workspace, args.rows, args.keys, log_sums, args.scores);
  return cudaGetLastError();
}

size_t head_scores_workspace(uint32_t rows, uint32_t n_head, uint32_t n_kv_head, uint32_t keys) {
  const size_t most = std::min(rows, kScoredRows), of_head = most * keys;
  const size_t logits = std::max(of_head, std::min(kMostLogits, of_head * n_head));
  return logits + most * n_head + size_t{n_kv_head} * keys;
}

cudaError_t value_norms(const HeadScoresArgs& args, cudaStream_t stream) {
  const dim3 blocks((args.keys + kSumThreads - 1) / kSumThreads, args.kv.n_kv_head);
  value_norms_kernel<<<blocks, kSumThreads, 0, stream>>>(args, args.workspace);
  return cudaGetLastError();
}

cudaError_t head_scores(const HeadScoresArgs& args, cudaStream_t stream) {
  if (args.kv.head_dim % 16 != 0 || args.kv.head_dim > 256) return cudaErrorNotSupported;
  if (args.rows == 0) return cudaSuccess;
  const uint32_t at_once = heads_at_once(args.rows, args.n_head, args.keys);
  HeadRoom room;
  room.norms = args.workspace;
  room.logits = room.norms + size_t{args.kv.n_kv_head} * args.keys;
  room.log_sums = room.logits + size_t{at_once} * args.rows * args.keys;
  const uint32_t pages = (args.keys + kPageTokens - 1) / kPageTokens;
  const size_t shared =
      row_tiles(args.rows) * 16 * query_stride(args.kv.head_dim) * sizeof(__nv_bfloat16);
  for (HeadRange heads; heads.first < args.n_head; heads.first += heads.count) {
    heads.count = std::min(at_once, args.n_head - heads.first);
    const dim3 tiles((pages + kPagesOfBlock - 1) / kPagesOfBlock, heads.count);
    head_logits_kernel<<<tiles, kThreads, shared, stream>>>(args, heads, room.logits);
    row_sums_kernel<<<heads.count * args.rows, kSumThreads, 0, stream>>>(room.logits, args.keys,
                                                                         room.log_sums);
    head_sums_kernel<<<(args.keys + 31) / 32, kSumThreads, 0, stream>>>(args, heads, room);
  }
  return cudaGetLastError();
}

cudaError_t value_deviation(const ValueDeviationArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  deviation_kernel<<<args.rows, kSumThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

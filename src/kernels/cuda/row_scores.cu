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

cudaError_t value_deviation(const ValueDeviationArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  deviation_kernel<<<args.rows, kSumThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

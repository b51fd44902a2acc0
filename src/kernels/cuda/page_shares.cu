#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_keys.cuh"
#include "kernels/cuda/page_shares.h"
#include "kernels/cuda/row_turns.cuh"
#include "kernels/cuda/share_history.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kReadWarps = 4, kAverageThreads = 1024, kPoolThreads = 256;
constexpr uint32_t kMaxGroup = 16;

__device__ float join(float share, float other, bool largest) {
  return largest ? fmaxf(share, other) : share + other;
}

__device__ void go_to_layer(ReadSharesArgs& a, uint32_t layer) {
  a.lists.pages += layer * a.page_stride;
  a.lists.keys += layer * a.key_stride;
  a.q += layer * a.q_stride;
  a.lse += layer * a.lse_stride;
  a.shares += layer * a.share_stride;
}

// A warp takes pages of a list in turn; splits: blocks of a list.
template <KvType type, uint32_t D>
__global__ __launch_bounds__(kReadWarps *
                             32) void read_kernel(const __grid_constant__ ReadSharesArgs layers,
                                                  uint32_t splits) {
  allow_next_kernel();
  wait_for_kernels_before();
  ReadSharesArgs a = layers;
  go_to_layer(a, blockIdx.y);
  const uint32_t list = blockIdx.x / splits, lane = threadIdx.x % 32;
  const uint32_t row = list / a.kv.n_kv_head, kv_head = list % a.kv.n_kv_head;
  const uint32_t group = a.n_head / a.kv.n_kv_head;
  const auto keys = static_cast<uint32_t>(a.lists.keys[list]);
  const size_t first = size_t{list} * a.lists.capacity;
  const size_t head = size_t{row} * a.n_head + kv_head * group;
  const uint32_t warp = blockIdx.x % splits * kReadWarps + threadIdx.x / 32;
  for (uint32_t page = warp; page * kPageTokens < keys; page += splits * kReadWarps) {
    const TileKeys<type, D> tile(key_tile(a.kv, a.lists.pages[first + page], kv_head));
    float sum = 0.0f;
    for (uint32_t start = 0; start < group; start += 8) {
      float shares[2] = {};  // of the lane's two queries
      EightQueries<type, D> q;
      q.load(a.q + (head + min(start + EightQueries<type, D>::lane_query(), group - 1)) * D);
      float logits[4];
      tile.multiply_by(q, logits);
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t query = start + lane % 4 * 2 + i % 2;
        const uint32_t key = page * kPageTokens + TileKeys<type, D>::lane_token(i / 2);
        if (query >= group || key >= keys) continue;
        const float total = a.lse[head + query] * kLog2OfE;
        const float share = exp2_fast(scaled_logit(logits[i], a.scale, a.soft_cap) - total);
        shares[i % 2] = join(shares[i % 2], share, a.largest);
      }
      for (uint32_t mask = 4; mask < 32; mask *= 2) {
        for (float& x : shares) x = join(x, __shfl_xor_sync(~0u, x, mask), a.largest);
      }
      sum += shares[0] + shares[1];
    }
    for (uint32_t mask = 1; mask < 4; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (lane == 0) a.shares[first + page] = sum / static_cast<float>(group);
  }
}

// Of all threads, in the same order every time.
__device__ float sum_of_block(float value, float* warps) {
  for (uint32_t mask = 1; mask < 32; mask *= 2) value += __shfl_xor_sync(~0u, value, mask);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[threadIdx.x % 32];
  for (uint32_t mask = 1; mask < 32; mask *= 2) value += __shfl_xor_sync(~0u, value, mask);
  return value;
}

// A row as it may have been: what it read, and the average of what it did not. Without roots what
// it read alone.
__device__ void keep_row(const AverageSharesArgs& a, const float* averages, float here) {
  const uint32_t list = blockIdx.x, row = list / a.n_kv_head;
  const uint32_t read = (static_cast<uint32_t>(a.keys[list]) + kPageTokens - 1) / kPageTokens;
  const size_t first = size_t{list} * a.list_capacity;
  const size_t kept = size_t{a.slots[row]} * a.n_kv_head + list % a.n_kv_head;
  float* to = history_row(a.history, kept, a.positions[row], a.capacity);
  const uint32_t last = a.numbers[first + read - 1];
  for (uint32_t page = threadIdx.x; page < a.capacity; page += kAverageThreads) {
    const bool guessed = a.history.roots && page <= last;
    to[page] = guessed ? history_value(a.history, a.fade * averages[page]) : 0.0f;
  }
  __syncthreads();  // averages change after it, too
  const float part = a.history.roots ? here : 1.0f;
  for (uint32_t i = threadIdx.x; i < read; i += kAverageThreads) {
    to[a.numbers[first + i]] = history_value(a.history, part * a.shares[first + i]);
  }
}

__device__ AverageSharesArgs of_layer(AverageSharesArgs a, uint32_t layer) {
  a.numbers += layer * a.list_stride;
  a.shares += layer * a.list_stride;
  a.keys += layer * a.key_stride;
  a.averages += layer * a.average_stride;
  if (a.history.rows != nullptr) a.history.rows += layer * a.average_stride * a.history.count;
  a.turns.offset += layer;
  return a;
}

// A block per list.
__global__ __launch_bounds__(kAverageThreads) void average_kernel(
    const __grid_constant__ AverageSharesArgs layers) {
  __shared__ float warps[kAverageThreads / 32];
  allow_next_kernel();
  wait_for_kernels_before();
  const AverageSharesArgs a = of_layer(layers, blockIdx.y);
  const uint32_t list = blockIdx.x, row = list / a.n_kv_head;
  const uint32_t read = (static_cast<uint32_t>(a.keys[list]) + kPageTokens - 1) / kPageTokens;
  if (read == 0 || (a.turns.period > 0 && has_turn(a.turns, a.positions[row]))) return;
  const size_t first = size_t{list} * a.list_capacity;
  const uint32_t* numbers = a.numbers + first;
  float* averages =
      a.averages + (size_t{a.slots[row]} * a.n_kv_head + list % a.n_kv_head) * a.capacity;
  float elsewhere = 0.0f;
  for (uint32_t page = threadIdx.x; page <= numbers[read - 1]; page += kAverageThreads) {
    elsewhere += averages[page];
  }
  for (uint32_t i = threadIdx.x; i < read; i += kAverageThreads) elsewhere -= averages[numbers[i]];
  elsewhere = a.fade * sum_of_block(elsewhere, warps);
  const float here = fminf(fmaxf(1.0f - elsewhere, 0.0f), 1.0f), share = (1.0f - a.factor) * here;
  if (a.history.rows != nullptr) keep_row(a, averages, here);
  const bool fades = a.fade != 1.0f;
  for (uint32_t i = threadIdx.x; i < read; i += kAverageThreads) {
    float& kept = fades ? a.shares[first + i] : averages[numbers[i]];
    kept = a.factor * averages[numbers[i]] + share * a.shares[first + i];
  }
  if (!fades) return;
  __syncthreads();
  for (uint32_t page = threadIdx.x; page <= numbers[read - 1]; page += kAverageThreads) {
    averages[page] *= a.fade;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < read; i += kAverageThreads) {
    averages[numbers[i]] = a.shares[first + i];
  }
}

__global__ __launch_bounds__(kPoolThreads) void weigh_kernel(
    const __grid_constant__ WeighRowsArgs a) {
  const uint32_t unit = blockIdx.x * kPoolThreads + threadIdx.x, row = unit / a.n_head;
  if (row >= a.rows) return;
  const float past = powf(a.factor, static_cast<float>(a.rows - 1 - row));
  const float weight = a.first && row == 0 ? past : (1.0f - a.factor) * past;
  a.weighed[unit] = a.lse[unit] - logf(weight);  // +inf: the row does not count
}

__global__ __launch_bounds__(kPoolThreads) void pool_kernel(
    const __grid_constant__ PoolSharesArgs a) {
  const uint32_t page = blockIdx.x * kPoolThreads + threadIdx.x, kv_head = blockIdx.y;
  if (page >= a.capacity) return;
  const uint32_t group = a.n_head / a.n_kv_head;
  const uint32_t end = min(a.keys, (page + 1) * kPageTokens);
  float sum = 0.0f;
  for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (uint32_t key = page * kPageTokens; key < end; ++key) {
      sum += a.votes[size_t{head} * a.stride + key];
    }
  }
  float& average = a.averages[size_t{kv_head} * a.capacity + page];
  const float past = a.past > 0.0f ? a.past * average : 0.0f;
  average = past + sum / static_cast<float>(group);
}

__global__ __launch_bounds__(kPoolThreads) void rows_kernel(
    const __grid_constant__ AverageRowsArgs a) {
  const uint32_t page = blockIdx.x * kPoolThreads + threadIdx.x, kv_head = blockIdx.y;
  if (page >= a.capacity) return;
  float& kept = a.averages[size_t{kv_head} * a.capacity + page];
  float average = a.first ? 0.0f : kept;
  for (uint32_t row = 0; row < a.rows; ++row) {
    const bool seen = page <= static_cast<uint32_t>(a.positions[row]) / kPageTokens;
    const float factor = a.first && row == 0 ? 0.0f : a.factor;
    const size_t at = (size_t{row} * a.n_kv_head + kv_head) * a.capacity + page;
    const float share = seen ? a.shares[at] : 0.0f;
    average = factor * average + (1.0f - factor) * share;
    if (a.history.rows == nullptr) continue;
    history_row(a.history, kv_head, a.positions[row], a.capacity)[page] =
        history_value(a.history, share);
  }
  kept = average;
}

bool has_group(uint32_t n_head, uint32_t n_kv_head) {
  const uint32_t group = n_kv_head > 0 ? n_head / n_kv_head : 0;
  return group >= 1 && group <= kMaxGroup;
}

}  // namespace

cudaError_t read_shares(const ReadSharesArgs& args, cudaStream_t stream) {
  const uint32_t lists = args.rows * args.kv.n_kv_head;
  if (!has_group(args.n_head, args.kv.n_kv_head)) return cudaErrorNotSupported;
  if (lists * args.layers == 0) return cudaSuccess;
  constexpr uint32_t kBlocks = 8;  // of a multiprocessor, while there is work
  const uint32_t most = (args.lists.capacity + kReadWarps - 1) / kReadWarps;
  const uint32_t blocks = device_limits().multiprocessors * kBlocks / (lists * args.layers);
  const uint32_t splits = std::clamp(blocks, 1u, std::max(most, 1u));
  return with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    return launch_overlapped(read_kernel<type, dim>, dim3(lists * splits, args.layers),
                             kReadWarps * 32, stream, args, splits);
  });
}

cudaError_t average_shares(const AverageSharesArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  return launch_overlapped(average_kernel, dim3(args.rows * args.n_kv_head, args.layers),
                           kAverageThreads, stream, args);
}

cudaError_t weigh_rows(const WeighRowsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const uint32_t units = args.rows * args.n_head;
  weigh_kernel<<<(units + kPoolThreads - 1) / kPoolThreads, kPoolThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t pool_shares(const PoolSharesArgs& args, cudaStream_t stream) {
  if (!has_group(args.n_head, args.n_kv_head)) return cudaErrorNotSupported;
  if (args.capacity == 0) return cudaSuccess;
  const dim3 grid((args.capacity + kPoolThreads - 1) / kPoolThreads, args.n_kv_head);
  pool_kernel<<<grid, kPoolThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t average_rows(const AverageRowsArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.capacity == 0) return cudaSuccess;
  const dim3 grid((args.capacity + kPoolThreads - 1) / kPoolThreads, args.n_kv_head);
  rows_kernel<<<grid, kPoolThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_keys.cuh"
#include "kernels/cuda/page_shares.h"
#include "kernels/cuda/row_turns.cuh"
#include "kernels/cuda/share_history.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kAverageThreads = 1024, kPoolThreads = 256;
constexpr uint32_t kMaxGroup = 16;

// Of all threads, in the same order every time.
__device__ float sum_of_block(float value, float* warps) {
  for (uint32_t mask = 1; mask < 32; mask *= 2) value += __shfl_xor_sync(~0u, value, mask);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[threadIdx.x % 32];
  for (uint32_t mask = 1; mask < 32; mask *= 2) value += __shfl_xor_sync(~0u, value, mask);
  return value;
}

// Shares of the pages of this block's list, each by the thread that uses it.
__device__ void find_shares(const AverageSharesArgs& a, uint32_t read) {
  const uint32_t group = a.n_head / a.n_kv_head;
  const size_t list = blockIdx.x, head = list * group;
  for (uint32_t i = threadIdx.x; i < read; i += kAverageThreads) {
    float sum = 0.0f;
    for (uint32_t j = 0; j < group; ++j) {
      const float log = a.logs[(head + j) * a.list_capacity + i];
      sum += exp2f(log - a.lse[head + j] * kLog2OfE);
    }
    a.shares[list * a.list_capacity + i] = sum / static_cast<float>(group);
  }
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
  a.logs += layer * a.list_stride * (a.n_head / a.n_kv_head);
  a.lse += layer * a.lse_stride;
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
  find_shares(a, read);
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

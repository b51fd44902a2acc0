#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/page_table.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256;

uint32_t blocks(uint32_t count) { return (count + kThreads - 1) / kThreads; }

__device__ uint32_t global_thread() { return blockIdx.x * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads)
    apply_kernel(const PageUpdate* updates, uint32_t count, uint32_t* table) {
  const uint32_t i = global_thread();
  if (i >= count) return;
  const PageUpdate update = updates[i];
  table[update.entry] = update.page;
}

__global__ void __launch_bounds__(kThreads)
    count_kernel(const int32_t* positions, uint32_t count, int32_t* keys, int32_t cap,
                 int32_t* capped) {
  const uint32_t i = global_thread();
  if (i >= count) return;
  if (keys != nullptr) keys[i] = positions[i] + 1;
  if (capped != nullptr) capped[i] = min(positions[i], cap);
}

// One block per row.
__global__ void __launch_bounds__(kThreads) range_kernel(RangeLists lists) {
  constexpr int32_t kTokens = kPageTokens;
  const uint32_t row = blockIdx.x;
  const int32_t position = lists.positions[row];
  const int32_t begin = max(lists.first_key, lists.window > 0 ? position - lists.window + 1 : 0);
  const int32_t end = min(lists.end_key, position + 1);
  const int32_t first = begin / kTokens;
  const int32_t count = end > begin ? (end - 1) / kTokens - first + 1 : 0;
  const size_t at = size_t{row} * lists.list_capacity;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    lists.pages[at + i] = lists.table[size_t{row} * lists.capacity + first + i];
    lists.slots[at + i] = static_cast<uint16_t>(i == 0 ? 0xffffu << begin % kTokens : 0xffffu);
  }
  if (threadIdx.x == 0) lists.keys[row] = count > 0 ? end - first * kTokens : 0;
}

// One warp per row.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(float* out, float* lse, const float* more, const float* more_lse, uint32_t rows,
                 uint32_t head_dim) {
  const uint32_t row = global_thread() / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float a = lse[row], b = more_lse[row], top = fmaxf(a, b);
  if (top == -INFINITY) return;
  const float wa = expf(a - top), wb = expf(b - top), total = wa + wb;
  for (uint32_t i = lane; i < head_dim; i += 32) {
    const size_t at = size_t{row} * head_dim + i;
    out[at] = (wa * out[at] + wb * more[at]) / total;
  }
  __syncwarp();
  if (lane == 0) lse[row] = top + logf(total);
}

}  // namespace

cudaError_t apply_updates(const PageUpdate* updates, uint32_t count, uint32_t* table,
                          cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  apply_kernel<<<blocks(count), kThreads, 0, stream>>>(updates, count, table);
  return cudaGetLastError();
}

cudaError_t count_keys(const int32_t* positions, uint32_t count, int32_t* keys, int32_t cap,
                       int32_t* capped, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  count_kernel<<<blocks(count), kThreads, 0, stream>>>(positions, count, keys, cap, capped);
  return cudaGetLastError();
}

cudaError_t range_lists(const RangeLists& lists, cudaStream_t stream) {
  if (lists.count == 0) return cudaSuccess;
  range_kernel<<<lists.count, kThreads, 0, stream>>>(lists);
  return cudaGetLastError();
}

cudaError_t merge_partials(float* out, float* lse, const float* more, const float* more_lse,
                           uint32_t rows, uint32_t head_dim, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  merge_kernel<<<blocks(rows * 32), kThreads, 0, stream>>>(out, lse, more, more_lse, rows,
                                                           head_dim);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

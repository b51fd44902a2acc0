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
    count_kernel(const int32_t* positions, uint32_t count, int32_t* keys) {
  const uint32_t i = global_thread();
  if (i < count) keys[i] = positions[i] + 1;
}

// One block per row and layer.
__global__ void __launch_bounds__(kThreads) range_kernel(const __grid_constant__ RangeLists lists) {
  constexpr int32_t kTokens = kPageTokens;
  const uint32_t row = blockIdx.x, layer = blockIdx.y;
  const int32_t window = lists.windows[layer];
  if (window == 0) return;
  const uint32_t* table = lists.tables + (size_t{layer} * lists.table_rows + row) * lists.capacity;
  const size_t list = size_t{layer} * lists.list_rows + row, at = list * lists.list_capacity;
  const int32_t end = lists.positions[row] + 1;
  const int32_t sinks = min(lists.sinks, end), sink_pages = (sinks + kTokens - 1) / kTokens;
  const int32_t begin = max(sinks, end - window), first = begin / kTokens;
  const int32_t pages = sink_pages + (end > begin ? (end - 1) / kTokens - first + 1 : 0);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < pages; i += kThreads) {
    const bool is_sink = i < sink_pages;
    const int32_t page = is_sink ? i : first + i - sink_pages;
    uint32_t slots = 0xffff;
    if (i == sink_pages - 1) slots >>= sink_pages * kTokens - sinks;
    if (i == sink_pages) slots <<= begin % kTokens;
    lists.pages[at + i] = table[page];
    lists.slots[at + i] = static_cast<uint16_t>(slots);
  }
  if (threadIdx.x > 0) return;
  lists.keys[list] = end > begin ? (sink_pages - first) * kTokens + end : sinks;
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

cudaError_t count_keys(const int32_t* positions, uint32_t count, int32_t* keys,
                       cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  count_kernel<<<blocks(count), kThreads, 0, stream>>>(positions, count, keys);
  return cudaGetLastError();
}

cudaError_t range_lists(const RangeLists& lists, cudaStream_t stream) {
  if (lists.count == 0 || lists.layers == 0) return cudaSuccess;
  range_kernel<<<dim3(lists.count, lists.layers), kThreads, 0, stream>>>(lists);
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

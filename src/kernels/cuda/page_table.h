// Page tables in device memory: [layers][sequences][capacity] page ids, kept up to date by the host
// and read by kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/kv_tile.h"

namespace reprise::kernels::cuda {

struct PageUpdate {
  uint32_t entry;  // index into the table
  uint32_t page;
};

/// table[entry] = page. updates may lie in page-locked host memory.
cudaError_t apply_updates(const PageUpdate* updates, uint32_t count, uint32_t* table,
                          cudaStream_t stream);

/// keys[i] = positions[i] + 1.
cudaError_t count_keys(const int32_t* positions, uint32_t count, int32_t* keys,
                       cudaStream_t stream);

/// Lists of the first and the last keys of rows, one of a sequence, in all layers at once.
struct RangeLists {
  const uint32_t* tables = nullptr;    // [layers, table_rows, capacity] page tables
  const int32_t* positions = nullptr;  // [count] of rows 0 to count - 1 of the tables
  uint32_t layers = 0, table_rows = 0, capacity = 0, count = 0;
  const int32_t* windows = nullptr;  // [layers] last keys, the row's own included; 0: no list
  int32_t sinks = 0;                 // first keys
  uint32_t* pages = nullptr;         // [layers, list_rows, list_capacity] out
  uint16_t* slots = nullptr;         // the same shape, out
  int32_t* keys = nullptr;           // [layers, list_rows] out: tokens of a list up to its last key
  uint32_t list_rows = 0, list_capacity = 0;  // at least count, range_list_capacity()
};
cudaError_t range_lists(const RangeLists& lists, cudaStream_t stream);

/// Pages of the longest list. The pages of the first keys come before those of the last, so one
/// that holds both stands there twice.
constexpr uint32_t range_list_capacity(uint32_t sinks, uint32_t window, uint32_t capacity) {
  const uint64_t first = (uint64_t{sinks} + kPageTokens - 1) / kPageTokens;
  const uint64_t all = first + window / kPageTokens + 2;
  return all < capacity + uint64_t{1} ? static_cast<uint32_t>(all) : capacity + 1;
}

/// out, lse = merge of (out, lse) and (more, more_lse), rows of head_dim; natural-log lse.
cudaError_t merge_partials(float* out, float* lse, const float* more, const float* more_lse,
                           uint32_t rows, uint32_t head_dim, cudaStream_t stream);

}  // namespace reprise::kernels::cuda

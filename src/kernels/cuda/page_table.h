// Page tables in device memory: [layers][sequences][capacity] page ids, kept up to date by the host
// and read by kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>

namespace reprise::kernels::cuda {

struct PageUpdate {
  uint32_t entry;  // index into the table
  uint32_t page;
};

/// table[entry] = page. updates may lie in page-locked host memory.
cudaError_t apply_updates(const PageUpdate* updates, uint32_t count, uint32_t* table,
                          cudaStream_t stream);

/// keys[i] = positions[i] + 1 and capped[i] = min(positions[i], cap); either may be null.
cudaError_t count_keys(const int32_t* positions, uint32_t count, int32_t* keys, int32_t cap,
                       int32_t* capped, cudaStream_t stream);

/// Lists of the keys [max(first_key, position - window + 1), min(end_key, position + 1)).
struct RangeLists {
  const uint32_t* table = nullptr;     // [count, capacity] of the layer
  const int32_t* positions = nullptr;  // [count]
  uint32_t count = 0, capacity = 0;
  int32_t window = 0;  // 0: no bound
  int32_t first_key = 0, end_key = std::numeric_limits<int32_t>::max();
  uint32_t* pages = nullptr;   // [count, list_capacity] out
  uint16_t* slots = nullptr;   // [count, list_capacity] out
  int32_t* keys = nullptr;     // [count] out: tokens of the list up to its last key
  uint32_t list_capacity = 0;  // pages that the longest list touches
};
cudaError_t range_lists(const RangeLists& lists, cudaStream_t stream);

/// out, lse = merge of (out, lse) and (more, more_lse), rows of head_dim; natural-log lse.
cudaError_t merge_partials(float* out, float* lse, const float* more, const float* more_lse,
                           uint32_t rows, uint32_t head_dim, cudaStream_t stream);

}  // namespace reprise::kernels::cuda

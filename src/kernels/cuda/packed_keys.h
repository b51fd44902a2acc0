// Some keys of a sequence copied side by side, and page tables that begin with them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

struct PackKeysArgs {
  PagedKv kv;                              // packed_pages are written
  const uint32_t* pages = nullptr;         // page table of the sequence
  const int32_t* positions = nullptr;      // [end] of the keys to pack
  const uint32_t* packed_pages = nullptr;  // where key i goes to slot i % 16 of page i / 16
  uint32_t first = 0, end = 0;             // keys that are copied
};

/// Copies keys and values of all KV heads, bit by bit. head_dim at most 256.
cudaError_t pack_keys(const PackKeysArgs& args, cudaStream_t stream);

/// A table: pages [0, packed) of the packed ones, then those of the sequence from `first` on.
struct PackedTable {
  uint32_t packed = 0, first = 0;
};

struct PackedTablesArgs {
  const uint32_t* pages = nullptr;  // [pages_end] page table of the sequence
  uint32_t pages_end = 0;
  const uint32_t* packed_pages = nullptr;
  const PackedTable* tables = nullptr;  // [count]
  uint32_t count = 0, capacity = 0;     // capacity >= packed + pages_end - first of every table
  uint32_t* out = nullptr;  // [count, capacity]; entries behind a table stay as they are
};
cudaError_t packed_tables(const PackedTablesArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda

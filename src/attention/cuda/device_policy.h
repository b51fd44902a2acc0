// The side of a policy that runs on a CUDA device: chooses keys by kernels, inside captured steps.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cuda/paged_decode.h"
#include "model/config.h"
#include "reprise/error.h"

namespace reprise {

/// Rows of a pass whose keys were stored just now; pointers are of the device.
struct DeviceStored {
  uint32_t layer = 0, rows = 0;
  const int32_t* positions = nullptr;   // [rows]
  const uint32_t* sequences = nullptr;  // [rows] row of pages
  const uint32_t* pages = nullptr;      // [sequences, capacity] page tables of the layer
  uint32_t capacity = 0;
  kernels::cuda::PagedKv kv;
};

/// Decode rows of one layer, one of a sequence, that share a policy.
struct DeviceQueries {
  uint32_t layer = 0, count = 0, n_head = 0;
  const int32_t* positions = nullptr;  // [count]
  const uint32_t* pages = nullptr;     // [count, capacity] page tables of the layer
  uint32_t capacity = 0;
  const int32_t* keys = nullptr;     // [count] keys that full attention reads
  const __nv_bfloat16* q = nullptr;  // [count, n_head, head_dim] rotated
  kernels::cuda::PagedKv kv;
};

/// Keys that prefill rows read: [max(first_key, position - window + 1), min(end_key, position +
/// 1)).
struct PrefillPart {
  int32_t first_key = 0, end_key = std::numeric_limits<int32_t>::max();
  int32_t window = 0;                                                // 0: no bound
  int32_t max_query_position = std::numeric_limits<int32_t>::max();  // as of DevicePart
};

/// Keys to read; parts are disjoint. What lists point to stays until the next select() or
/// reserve().
struct DevicePart {
  kernels::cuda::KeyLists lists;
  /// Rows further right are rotated as if they stood here; see SelectionPart.
  int32_t max_query_position = std::numeric_limits<int32_t>::max();
};

/// Memory that a policy may count on.
struct DeviceRoom {
  uint32_t sequences = 0;   // of a step
  uint32_t capacity = 0;    // pages of a sequence
  uint64_t pool_pages = 0;  // page ids are smaller
};

/// One object serves every sequence with the same options; what belongs to a sequence's keys is
/// kept by page id, so that forks and shared prefixes need nothing. Everything is enqueued: nothing
/// is waited for, and nothing is allocated but in reserve().
class DevicePolicy {
 public:
  virtual ~DevicePolicy() = default;

  /// Makes room before steps that need it; called again when a capacity grows.
  virtual Status reserve(const DeviceRoom&) { return {}; }
  /// Once, after the first reserve(): takes in what earlier passes have stored.
  virtual Status adopt(const kernels::cuda::PagedKv&, cudaStream_t) { return {}; }
  /// For every pass and layer without a window of its own, whatever policy its sequences have.
  virtual Status after_store(const DeviceStored&, cudaStream_t) { return {}; }
  virtual Status select(const DeviceQueries& queries, std::vector<DevicePart>& parts,
                        cudaStream_t stream) = 0;
  /// What prefill rows from a position on read; empty: everything. Parts are disjoint, and every
  /// row sees a key of each.
  virtual std::vector<PrefillPart> prefill_parts(int32_t /*position*/) const { return {}; }
  /// Keys of each KV head that the row at a position reads; and bytes of own structures, for all KV
  /// heads together, to choose them. For the counters.
  virtual uint64_t keys_read(int32_t position) const = 0;
  virtual uint64_t index_bytes_read(int32_t /*position*/) const { return 0; }
};

}  // namespace reprise

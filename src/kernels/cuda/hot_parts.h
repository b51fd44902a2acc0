// A cache in device memory of parts of pages that lie in the host's. A part is what one KV head has
// of a page: another head needs other pages. Slots are frames in the same range of addresses, so a
// list of pages that names them is read like any other. Sizes of launches depend on capacities
// only, so that calls may be captured and replayed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/page_bounds.h"

namespace reprise::kernels::cuda {

/// In place of a slot: the part lies in no slot; it is to get one.
inline constexpr uint32_t kNoSlot = ~0u, kSlotToCome = ~0u - 1;

/// Parts that were looked up, since the start.
struct HotCounts {
  unsigned long long hits = 0, misses = 0;
  unsigned long long fetched = 0;  // parts that were copied to slots
};

/// Slots of a layer hold parts of that layer alone, so that they are filled while other layers are
/// read.
struct HotParts {
  uint32_t n_layer = 0, n_kv_head = 0;
  uint32_t first_host = 0, host_frames = 0;  // frames in the host's memory
  uint32_t first_slot = 0, layer_slots = 0;  // layer l's are from first_slot + l layer_slots on
  uint32_t* slots = nullptr;                 // [host_frames, n_kv_head] frame of the part's slot
  uint32_t* held = nullptr;    // [n_layer, n_kv_head, layer_slots] host frame, or kNoSlot
  uint32_t* used = nullptr;    // likewise, the last step that needed it; 0: none did
  uint32_t* wanted = nullptr;  // likewise, host frames to fetch
  uint32_t* given = nullptr;   // likewise, the slots that they got
  uint32_t* wants = nullptr;   // [n_layer, n_kv_head] how many are wanted
  uint32_t* gifts = nullptr;   // [n_layer, n_kv_head] how many of them got slots
  uint32_t* step = nullptr;    // [1]
  HotCounts* counts = nullptr;
};

/// Rows whose keys a pass stores.
struct StoredRows {
  const int32_t* positions = nullptr;   // [rows]
  const uint32_t* sequences = nullptr;  // [rows] row of tables
  uint32_t rows = 0;
  const uint32_t* tables = nullptr;  // [n_layer, table_rows, capacity] page tables
  uint32_t table_rows = 0, capacity = 0;
};

/// A step begins: pages that it stores keys in are forgotten.
cudaError_t begin_hot_step(const HotParts& hot, const StoredRows& rows, cudaStream_t stream);

/// Pages whose content came from elsewhere are forgotten; may run beside everything else.
cudaError_t forget_hot_pages(const HotParts& hot, const PageIds& pages, cudaStream_t stream);

/// All that a layer holds is forgotten; nobody reads it meanwhile.
cudaError_t forget_hot_layer(const HotParts& hot, uint32_t layer, cudaStream_t stream);

/// Layers that one launch serves.
inline constexpr uint32_t kHotLayers = 32;

/// What a layer's rows read.
struct HotLists {
  uint32_t layer = 0, capacity = 0;
  const uint32_t* pages = nullptr;  // [rows, n_kv_head, capacity]
  const int32_t* keys = nullptr;    // [rows, n_kv_head] tokens of a list
  uint32_t* found = nullptr;  // as pages, if not null, out: slots in place of pages that have one
};

struct HotLookUp {
  HotLists lists[kHotLayers];
  uint32_t layers = 0;  // that have lists
  uint32_t rows = 0;    // each with n_kv_head lists in a layer
  bool fetch = false;   // what has no slot is wanted
  uint32_t ahead = 0;   // steps from now to that in which the lists are read
};

/// The last page of a list is the row's own and is never looked up. Hits and misses are counted
/// where there is an output.
cudaError_t look_up_hot_parts(const HotParts& hot, const HotLookUp& args, cudaStream_t stream);

struct HotFetch {
  uint32_t layers[kHotLayers] = {};
  uint32_t count = 0;  // of layers
  uint32_t ahead = 0;  // as HotLookUp
  // Parts of a KV head, or as many as it found in this step if that is more: for what was read in
  // place, which crosses the bus a second time.
  uint32_t most = ~0u;
  void* pages = nullptr;    // of frame 0
  uint64_t part_bytes = 0;  // a multiple of 16, otherwise cudaErrorInvalidValue
};

/// Gives slots to what is wanted in layers, those that were not needed for longest and are not
/// needed in the step `ahead` from now, and copies the parts there.
cudaError_t fetch_hot_parts(const HotParts& hot, const HotFetch& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda

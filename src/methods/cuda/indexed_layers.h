// The layers of a model whose keys have an index on a CUDA device.
#pragma once

#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"

namespace reprise {

struct IndexedLayers {
  static constexpr uint32_t kNone = ~0u;

  std::vector<uint32_t> layers;                        // of the model
  std::vector<uint32_t> places;                        // [n_layer] theirs in an index, or kNone
  kernels::cuda::DeviceBuffer<uint32_t> model_layers;  // layers, on the device

  /// All that see every key, but those that the policy leaves alone.
  Status find(const ModelConfig& config, const DevicePolicy& policy);
  uint32_t count() const { return static_cast<uint32_t>(layers.size()); }
};

/// Where decode rows of a group find their places and the pages of every layer. Args: of a kernel
/// that works on all indexed layers.
template <class Args>
void point_at(const DeviceRows& rows, const DeviceGroup& group, const IndexedLayers& layers,
              const kernels::cuda::PagedKv& kv, Args& args) {
  args.rows.positions = rows.positions + group.first;
  args.rows.capacity = rows.capacity;
  args.kv = kv;
  args.tables = rows.tables + size_t{group.first} * rows.capacity;
  args.table_rows = rows.table_rows;
  args.model_layers = layers.model_layers.data();
}

}  // namespace reprise

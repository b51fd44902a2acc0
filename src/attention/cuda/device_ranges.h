// Lists of the first and the last keys of decode rows, made once a pass for all layers.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"

namespace reprise {

class DeviceRanges {
 public:
  /// windows: [n_layer] last keys, the row's own included; 0: the layer gets no lists. sinks: first
  /// keys.
  DeviceRanges(std::vector<int32_t> windows, uint32_t sinks);

  /// For so many decode rows, and page tables of so many pages.
  Status reserve(uint32_t rows, uint32_t capacity);
  /// Enqueues the lists of all decode rows.
  Status list(const DeviceRows& rows, cudaStream_t stream) const;
  /// Of a layer's rows from first on.
  kernels::cuda::KeyLists lists(uint32_t layer, uint32_t first) const;
  /// That hold the first keys, in front of every list.
  uint32_t sink_pages() const;

 private:
  std::vector<int32_t> windows_;
  uint32_t sinks_, rows_ = 0, capacity_ = 0;
  kernels::cuda::DeviceBuffer<int32_t> device_windows_;  // [n_layer]
  kernels::cuda::DeviceBuffer<uint32_t> pages_;          // [n_layer, rows, capacity]
  kernels::cuda::DeviceBuffer<uint16_t> slots_;          // [n_layer, rows, capacity]
  kernels::cuda::DeviceBuffer<int32_t> keys_;            // [n_layer, rows]
};

}  // namespace reprise

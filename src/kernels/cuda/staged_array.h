// An array on both sides, whose values the host sends with a pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cuda/device_buffer.h"

namespace reprise::kernels::cuda {

/// Two staged copies, for passes that overlap: turn is 0 and 1 in turns, and the pass that had the
/// same turn before must be finished.
template <class T>
class StagedArray {
 public:
  /// what: is copied, for messages; it must outlive the array.
  Status reserve(size_t count, std::string_view what) {
    what_ = what;
    for (auto& staged : staged_) {
      if (auto status = staged.reserve(count, what); !status) return status;
    }
    return device_.reserve(count, what);
  }
  T* staged(uint32_t turn) { return staged_[turn].data(); }
  T* device() const { return device_.data(); }
  size_t size() const { return device_.size(); }
  /// The first ones of what is staged.
  Status send(uint32_t turn, size_t count, cudaStream_t stream) {
    if (count == 0) return {};
    REPRISE_CUDA(cudaMemcpyAsync(device_.data(), staged_[turn].data(), count * sizeof(T),
                                 cudaMemcpyHostToDevice, stream),
                 what_);
    return {};
  }
  Status send(std::span<const T> values, uint32_t turn, cudaStream_t stream) {
    std::copy(values.begin(), values.end(), staged(turn));
    return send(turn, values.size(), stream);
  }

 private:
  std::string_view what_;
  PinnedBuffer<T> staged_[2];
  DeviceBuffer<T> device_;
};

}  // namespace reprise::kernels::cuda

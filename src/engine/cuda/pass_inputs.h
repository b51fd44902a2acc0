// What a pass needs of the host, staged in page-locked memory and copied to the device.
#pragma once

#include <cstdint>
#include <span>

#include "engine/backend.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/sampling.h"

namespace reprise {

/// One array on both sides; two staged copies, for passes that overlap.
template <class T>
class StagedArray {
 public:
  Status reserve(size_t count) {
    for (auto& staged : staged_) {
      if (auto status = staged.reserve(count, "a pass's rows"); !status) return status;
    }
    return device_.reserve(count, "a pass's rows");
  }
  T* staged(uint32_t turn) { return staged_[turn].data(); }
  T* device() const { return device_.data(); }
  size_t size() const { return device_.size(); }
  Status send(uint32_t turn, size_t count, cudaStream_t stream) {
    if (count == 0) return {};
    REPRISE_CUDA(cudaMemcpyAsync(device_.data(), staged_[turn].data(), count * sizeof(T),
                                 cudaMemcpyHostToDevice, stream),
                 "copying a pass's rows");
    return {};
  }

 private:
  kernels::cuda::PinnedBuffer<T> staged_[2];
  kernels::cuda::DeviceBuffer<T> device_;
};

/// Pointers stay what they are, so that captured passes may use them; but for history's, which
/// grows with the longest penalty window.
struct PassInputs {
  StagedArray<int32_t> tokens, positions;  // [rows]
  StagedArray<uint32_t> sequences;         // [rows] step of each row
  StagedArray<uint32_t> prefill_results;   // [results] rows, counted from the decode rows on
  StagedArray<kernels::cuda::PrefillRows> prefill;  // [prefill steps]
  StagedArray<int32_t> result_positions;            // [results]
  StagedArray<kernels::cuda::SampleRule> rules;     // [results]
  StagedArray<int32_t> history;                     // [results, history_capacity]
  uint32_t history_capacity = 0;

  Status reserve(size_t rows, size_t results);
  /// Enqueues the copies of a pass whose tokens are all known.
  Status send(const ForwardPass& pass, uint32_t decode_rows,
              std::span<const kernels::cuda::PrefillRows> prefill_steps, uint32_t turn,
              cudaStream_t stream);

 private:
  void stage_rows(const ForwardPass& pass, uint32_t decode_rows, uint32_t turn);
  Status stage_rules(const ForwardPass& pass, uint32_t turn, cudaStream_t stream);
  size_t results_ = 0;
};

}  // namespace reprise

// What a pass needs of the host, staged in page-locked memory and copied to the device.
#pragma once

#include <cstdint>
#include <span>

#include "engine/backend.h"
#include "kernels/cuda/paged_prefill.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/staged_array.h"

namespace reprise {

/// Pointers stay what they are, so that captured passes may use them; but for history's, which
/// grows with the longest penalty window.
struct PassInputs {
  kernels::cuda::StagedArray<int32_t> tokens, positions;  // [rows]
  kernels::cuda::StagedArray<uint32_t> sequences;         // [rows] step of each row
  kernels::cuda::StagedArray<uint32_t> prefill_results;   // [results] rows behind the decode rows
  kernels::cuda::StagedArray<kernels::cuda::PrefillRows> prefill;  // [prefill steps]
  kernels::cuda::StagedArray<int32_t> result_positions;            // [results]
  kernels::cuda::StagedArray<kernels::cuda::SampleRule> rules;     // [results]
  kernels::cuda::StagedArray<int32_t> history;                     // [results, history_capacity]
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

// Puts keys and values that were computed elsewhere at their places in pages.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/paged_decode.h"
#include "kernels/ops.h"

namespace reprise::kernels::cuda {

/// A row of [n_kv_head, head_dim] among stored bytes: bf16, or int8 codes of which kScaleValues
/// share an f16 scale.
struct StoredRow {
  static constexpr uint32_t kUnit = 8;  // bytes
  static constexpr uint32_t kValues = UINT32_MAX;
  uint32_t at = 0;            // of the first value, in units
  uint32_t scales = kValues;  // index of its first scale; kValues: it has none
};

struct PlaceRowsArgs {
  const std::byte* stored = nullptr;                     // keys before rotation
  const StoredRow *k_rows = nullptr, *v_rows = nullptr;  // [rows]
  uint32_t rows = 0, pairs = 0;
  const float* cos_sin = nullptr;      // [rows][pairs][2] what keys are rotated by
  const int32_t* positions = nullptr;  // [rows] below 16 * capacity
  PagedKv kv;                          // pages are written
  const uint32_t* pages = nullptr;     // [capacity] page table of the sequence
};

/// Row i becomes token positions[i] % 16 of page pages[positions[i] / 16]. A code stands for its
/// product with the scale, rounded to bf16; rows of codes have a multiple of kScaleValues.
/// cudaErrorNotSupported: head_dim above 256 or not a multiple of 8 (FP8: 32).
cudaError_t place_rows(const PlaceRowsArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda

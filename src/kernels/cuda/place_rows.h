// Puts keys and values that were computed elsewhere at their places in pages.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

struct PlaceRowsArgs {
  const __nv_bfloat16* stored = nullptr;  // rows of [n_kv_head, head_dim], keys before rotation
  const uint32_t *k_rows = nullptr, *v_rows = nullptr;  // [rows] of stored
  uint32_t rows = 0, pairs = 0;
  const float* cos_sin = nullptr;      // [rows][pairs][2] what keys are rotated by
  const int32_t* positions = nullptr;  // [rows] below 16 * capacity
  PagedKv kv;                          // pages are written
  const uint32_t* pages = nullptr;     // [capacity] page table of the sequence
};

/// Row i becomes token positions[i] % 16 of page pages[positions[i] / 16]. cudaErrorNotSupported:
/// head_dim above 256 or not a multiple of 8 (FP8: 32).
cudaError_t place_rows(const PlaceRowsArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda

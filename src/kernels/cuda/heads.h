// What stands between a layer's projections and its attention: QK-norm, rotation, storing KV.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

/// cos_sin [rows][pairs][2] = cosine and sine of min(position, cap) times inv_freq [pairs],
/// computed in double and multiplied by factor.
cudaError_t rotary_rows(const double* inv_freq, uint32_t pairs, float factor,
                        const int32_t* positions, uint32_t rows, int32_t cap, float* cos_sin,
                        cudaStream_t stream);

/// Of rows times q_scale, [rows, n_head, head_dim]; null: not wanted.
struct RotatedQueries {
  __nv_bfloat16* rounded = nullptr;
  float* exact = nullptr;  // of the first exact_rows
};

struct HeadsArgs {
  const float* q = nullptr;                // [rows, n_head, head_dim], rotary pairs adjacent
  const float *k = nullptr, *v = nullptr;  // [rows, n_kv_head, head_dim]
  uint32_t rows = 0, n_head = 0, pairs = 0;
  const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim], or both null: no norm
  float norm_eps = 0.0f;
  const float* cos_sin = nullptr;         // [rows][pairs][2]
  const float* cos_sin_keys = nullptr;    // the same, of k; null: cos_sin
  const float* cos_sin_capped = nullptr;  // the same, of q_capped
  const int32_t* positions = nullptr;   // [rows] of the row in its sequence; < 0: nothing is stored
  PagedKv kv;                           // where k and v go; pages are written
  const uint32_t* pages = nullptr;      // [sequences, capacity] page tables
  const uint32_t* sequences = nullptr;  // [rows] row of pages
  uint32_t capacity = 0;
  float q_scale = 1.0f;
  uint32_t exact_rows = 0;
  RotatedQueries q_rotated;  // out
  RotatedQueries q_capped;   // out: rotated by cos_sin_capped
  float* q_plain = nullptr;  // [rows, n_head, head_dim] out: after QK-norm, not rotated
};

/// Angles, norms, positions and page tables are read beside launches ahead in the stream that were
/// made to overlap: they must be older than a pass's embed(), after which those begin.
/// Token at position p of sequence s is stored in slot p % 16 of page pages[s, p / 16]; p beyond
/// the table is not stored. cudaErrorNotSupported: head_dim above 256 or not a multiple of 8 (FP8:
/// 32); cudaErrorInvalidValue: more pairs than half of head_dim.
cudaError_t rotate_and_store(const HeadsArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda

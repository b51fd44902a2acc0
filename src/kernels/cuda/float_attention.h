// Attention over paged KV in float throughout, for any rows: what --precision f32 runs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/paged_decode.h"

namespace reprise::kernels::cuda {

struct FloatAttentionArgs {
  PagedKv kv;                           // of any type; holds keys up to each row's own position
  const uint32_t* pages = nullptr;      // [sequences, capacity] page tables
  uint32_t capacity = 0;                // pages
  const uint32_t* sequences = nullptr;  // [rows] row of pages
  const int32_t* positions = nullptr;   // [rows]; below 0: sees nothing
  uint32_t rows = 0, n_head = 0;
  const float* q = nullptr;  // [rows, n_head, head_dim] rotated
  float scale = 1.0f;
  float soft_cap = 0.0f;  // logit = cap tanh(logit / cap) when > 0
  int32_t window = 0;     // when > 0, the row at position p sees keys > p - window only
  float* out = nullptr;   // [rows, n_head, head_dim]; zeros where nothing is seen
};

/// out = softmax(scale q K^T) V over the keys up to each row's own, products and sums in float. A
/// row's bits do not depend on the other rows. cudaErrorNotSupported: head_dim above 256 or not a
/// multiple of 8 (FP8: 32).
cudaError_t float_attention(const FloatAttentionArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda

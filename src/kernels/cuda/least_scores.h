// What a far key must score to be read; see methods/reattention/least_scores.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/key_spans.h"

namespace reprise::kernels::cuda {

struct LeastScoresArgs {
  PagedKv kv;                          // keys as they were before rotation
  const uint32_t* pages = nullptr;     // [batch, capacity] page tables
  const int32_t* positions = nullptr;  // [batch] of the row of each sequence
  uint32_t batch = 0, capacity = 0, n_head = 0;
  MiddleKeys middle;
  const float* q = nullptr;  // [batch, n_head, head_dim] before rotation
  PositionAngles angles;     // up to middle.sink + middle.local
  float scale = 1.0f;        // of logits, natural
  float share = 0.0f;        // > 0
  float* least = nullptr;    // [batch, n_head] out
};

/// The q k at which exp(scale q k) is the share of the sum over the keys before and after the
/// middle, each where it stands among them. Sequences without a middle are left out. head_dim up
/// to 256.
cudaError_t least_scores(const LeastScoresArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda

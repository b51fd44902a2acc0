// What a Model holds.
#pragma once

#include <vector>

#include "model/model.h"
#include "model/weights.h"

namespace reprise {

struct Model::Weights : ModelWeights {};

/// Activations of one forward pass; grow to the largest batch. Floats, rows outermost.
struct Model::Buffers {
  std::vector<float> x;        // [rows, hidden] the residual stream
  std::vector<float> h;        // [rows, hidden] output before a post norm, or the last norm's
  std::vector<float> q, attn;  // [rows, n_head * head_dim]
  std::vector<float> k, v;     // [rows, n_kv_head * head_dim]
  std::vector<uint32_t> kept;  // [logit rows] rows of the batch, decode rows first
  std::vector<uint32_t> slot;  // [logit rows] where the logits of a kept row go
  kernels::MatmulScratch scratch;
};

}  // namespace reprise

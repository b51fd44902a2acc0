// Packed weights of a model, ready for the forward pass.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "kernels/matmul.h"
#include "model/tensor_source.h"
#include "reprise/progress.h"

namespace reprise {

/// y = x W^T + b
struct Linear {
  kernels::PackedMatrix weight;  // [out, in]
  std::vector<float> bias;       // [out] or empty

  kernels::Projection onto(float* out, bool accumulate = false) const {
    return {&weight, out, weight.rows(), bias.empty() ? nullptr : bias.data(), accumulate};
  }
};

struct LayerWeights {
  std::vector<float> attn_norm;       // [hidden]
  Linear q;                           // [n_head * head_dim, hidden], rotary pairs adjacent
  Linear k;                           // [n_kv_head * head_dim, hidden], rotary pairs adjacent
  Linear v;                           // [n_kv_head * head_dim, hidden]
  std::vector<float> q_norm, k_norm;  // [head_dim] or empty, rotary pairs adjacent
  Linear o;                           // [hidden, n_head * head_dim]
  std::vector<float> attn_post_norm;  // [hidden] or empty
  std::vector<float> mlp_norm;        // [hidden]
  Linear gate, up;                    // [ffn, hidden]
  Linear down;                        // [hidden, ffn]
  std::vector<float> mlp_post_norm;   // [hidden] or empty
};

struct ModelWeights {
  Linear embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  Linear lm_head;                 // [vocab, hidden], empty when tied to the embedding

  const Linear& head() const { return lm_head.weight.rows() != 0 ? lm_head : embedding; }
  /// Bytes that one decode step reads.
  size_t step_bytes() const;
};

/// Packs every tensor of the model, as it is stored or in F32, and gives its file pages back.
/// Errors: kMissingTensor, kBadShape, kUnsupportedType name the tensor; kOutOfMemory; kCancelled.
Result<ModelWeights> load_weights(const TensorSource& source, const ModelConfig& config,
                                  bool expand, ThreadPool& pool, const ProgressFn& progress);

}  // namespace reprise

// What the formats call the tensors of a model.
#pragma once

#include <span>
#include <string_view>

#include "model/config.h"

namespace reprise {

/// How a format names tensors; those of a layer come after its prefix. ".weight" and ".bias"
/// follow.
struct TensorNames {
  std::string_view embedding, final_norm, lm_head;
  std::string_view layer;  ///< prefix with {} for the layer
  std::string_view attn_norm, q, k, v, qkv, q_norm, k_norm, o, attn_post_norm;
  std::string_view mlp_norm, gate, up, gate_up, down, mlp_post_norm;
};

/// Where a Hugging Face folder keeps its text model: alone, or beside one that reads images.
struct TextRoot {
  std::string_view prefix;  ///< of the text model's tensors, but perhaps its head
  std::string_view embedding, final_norm, lm_head, layer;  ///< as in TensorNames
};
/// The first is that of a text model alone.
std::span<const TextRoot> text_roots();

const TensorNames& gguf_names();
/// Of a Hugging Face folder that holds a model of this configuration.
TensorNames folder_names(const ModelConfig& config, const TextRoot& root = text_roots().front());

}  // namespace reprise

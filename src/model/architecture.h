// The table of supported architectures: one entry says all that sets a family apart.
#pragma once

#include <string_view>

#include "model/config.h"

namespace reprise {

/// How Hugging Face folders store a family's text model inside one that also reads images: its
/// keys are in text_config, which leaves out what the configuration's class has by default.
struct WithImages {
  std::string_view hf;        ///< entry of config.json's architectures; empty: there is none
  std::string_view text;      ///< model_type of text_config
  std::string_view defaults;  ///< JSON: what text_config may leave out
};

struct Architecture {
  std::string_view gguf;  ///< value of general.architecture; empty: HF folders only
  std::string_view hf;    ///< entry of config.json's architectures
  WithImages with_images = {};
  kernels::Activation activation = kernels::Activation::kSilu;
  bool gguf_interleaved = false;  ///< GGUF converters store its rotary pairs adjacent
  bool qkv_bias = false;
  bool qk_norm = false;
  bool fused_weights = false;
  bool gemma = false;  ///< embeddings times sqrt(hidden), (1 + w) norms
  bool tied = false;   ///< HF: embeddings are tied where the file does not say
  bool post_norms = false;
  bool multipliers = false;                                ///< Granite's four
  bool soft_caps = false;                                  ///< may cap logits
  float attention_soft_cap = 0.0f, logit_soft_cap = 0.0f;  ///< GGUF: where the file names none
  bool local_rope = false;       ///< sliding-window layers have their own theta
  bool optional_window = false;  ///< HF: windows only where use_sliding_window says so
  uint32_t full_every = 0;       ///< with a window, every n-th layer sees everything; 0 = none does
  uint32_t unrotated_every = 0;  ///< every n-th layer has no rotary embedding; 0 = none
  float theta = 10000.0f;        ///< where the file names none
  uint32_t gguf_window = 0;      ///< where a GGUF file names none
  uint32_t hidden_scale_layers = 0;  ///< GGUF: with so many layers, q.k is scaled by
                                     ///< sqrt(n_head / hidden), which the file does not say
};

/// kUnknownArchitecture names it and lists the supported ones.
Result<const Architecture*> find_gguf_architecture(std::string_view name, std::string_view file);
/// By the name of the text model alone, or inside another.
Result<const Architecture*> find_hf_architecture(std::string_view name, std::string_view file);

/// Fills what follows from the entry alone; hidden and n_layer must be set.
void apply_architecture(const Architecture& architecture, ModelConfig& config);
/// config.window and config.layer_rope of the entry's pattern; window 0 = none.
void apply_layer_pattern(const Architecture& architecture, uint32_t window, ModelConfig& config);

}  // namespace reprise

// One graph, configuration as data: everything that differs between supported architectures.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "reprise/error.h"

namespace reprise {

class GgufFile;
class SafetensorsFolder;

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLongRope };

/// Which rotary table a layer uses; kNone: its queries and keys are not rotated.
enum class LayerRope : uint8_t { kGlobal, kLocal, kNone };

struct RopeConfig {
  float theta = 10000.0f;
  uint32_t dims = 0;  ///< rotated dimensions of a head (head_dim, or less with partial rotary)
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;
  uint32_t original_context = 0;
  float low_freq_factor = 1.0f, high_freq_factor = 4.0f;  ///< llama3
  float beta_fast = 32.0f, beta_slow = 1.0f;              ///< YaRN
  bool yarn_truncate = true;                              ///< YaRN: ramp between whole dimensions
  float yarn_extrapolation = 1.0f;                        ///< YaRN: multiplies the ramp
  float attention_factor = 1.0f;                          ///< multiplies cos and sin
  /// [dims/2] each or empty: divisors of the frequencies, within and beyond original_context. Both
  /// are the same for a fixed list.
  std::vector<float> short_factors, long_factors;
};

struct ModelConfig {
  std::string architecture;  ///< as the file names it, e.g. "llama", "Qwen2ForCausalLM"
  std::string name;
  uint32_t n_layer = 0, hidden = 0, n_head = 0, n_kv_head = 0, head_dim = 0, ffn = 0, vocab = 0;
  uint32_t context = 0;  ///< trained context length in tokens
  float norm_eps = 1e-5f;
  RopeConfig rope;
  RopeConfig local_rope;      ///< of LayerRope::kLocal layers, where the family has a second one
  uint32_t rope_context = 0;  ///< positions that the rotation in use was trained for; see rope.h
  std::vector<LayerRope> layer_rope;  ///< [n_layer]
  std::vector<uint32_t> window;       ///< [n_layer] keys a row may see incl. its own; 0 = all
  kernels::Activation activation = kernels::Activation::kSilu;
  bool tied_embeddings = false;
  bool post_norms = false;  ///< Gemma 2/3: norm after attention and after the MLP too
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;   ///< Granite
  float attention_scale = 0.0f;  ///< multiplies q.k; always set by the readers
  float attention_soft_cap = 0.0f, logit_soft_cap = 0.0f;  ///< 0 = none
  float logit_scale = 1.0f;  ///< multiplies logits (Granite: 1 / logits_scaling)
  bool interleaved_rope =
      false;                   ///< stored rotary pairs are adjacent (GGUF llama) rather than halves
  bool qkv_bias = false;       ///< biases of q, k and v are required (optional everywhere else)
  bool qk_norm = false;        ///< RMS norm of every query and key head
  bool fused_weights = false;  ///< q, k, v are stored as one matrix, and so are gate and up
  bool norm_plus_one = false;  ///< stored norm weights are w of (1 + w)
};

/// Errors: kUnknownArchitecture names it and lists the supported ones; kMissingKey, kBadType,
/// kBadValue name the key; kUnsupported for weights quantised in a way that is not read here.
Result<ModelConfig> read_gguf_config(const GgufFile& file);
Result<ModelConfig> read_folder_config(const SafetensorsFolder& folder);
/// The contents of a config.json, which messages call file; without a name.
Result<ModelConfig> read_hf_config(const nlohmann::json& json, const std::string& file);
/// Architectures that can be run, for messages and docs.
std::vector<std::string> supported_architectures();

}  // namespace reprise

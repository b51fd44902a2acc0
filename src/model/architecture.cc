#include "model/architecture.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/nearest.h"

namespace reprise {
namespace {

using kernels::Activation;

// Gemma3TextConfig and MistralConfig of transformers.
constexpr WithImages kGemma3WithImages{
    .hf = "Gemma3ForConditionalGeneration",
    .text = "gemma3_text",
    .defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                    "head_dim": 256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
                    "query_pre_attn_scalar": 256, "sliding_window": 4096})"};
constexpr WithImages kMistralWithImages{
    .hf = "Mistral3ForConditionalGeneration",
    .text = "mistral",
    .defaults = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
                    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
                    "sliding_window": 4096})"};

constexpr std::array kArchitectures{
    // Llama 2 and 3, SmolLM2, and every GGUF of Mistral
    Architecture{.gguf = "llama", .hf = "LlamaForCausalLM", .gguf_interleaved = true},
    Architecture{.gguf = "", .hf = "MistralForCausalLM", .with_images = kMistralWithImages},
    Architecture{.gguf = "smollm3",
                 .hf = "SmolLM3ForCausalLM",
                 .gguf_interleaved = true,
                 .tied = true,
                 .optional_window = true,
                 .unrotated_every = 4},
    Architecture{
        .gguf = "qwen2", .hf = "Qwen2ForCausalLM", .qkv_bias = true, .optional_window = true},
    Architecture{
        .gguf = "qwen3", .hf = "Qwen3ForCausalLM", .qk_norm = true, .optional_window = true},
    Architecture{.gguf = "phi3", .hf = "Phi3ForCausalLM", .fused_weights = true},
    Architecture{.gguf = "granite",
                 .hf = "GraniteForCausalLM",
                 .gguf_interleaved = true,
                 .multipliers = true},
    Architecture{.gguf = "gemma2",
                 .hf = "Gemma2ForCausalLM",
                 .activation = Activation::kGeluTanh,
                 .gemma = true,
                 .tied = true,
                 .post_norms = true,
                 .soft_caps = true,
                 .attention_soft_cap = 50.0f,
                 .logit_soft_cap = 30.0f,
                 .full_every = 2,
                 .gguf_window = 4096,
                 .hidden_scale_layers = 46},
    Architecture{.gguf = "gemma3",
                 .hf = "Gemma3ForCausalLM",
                 .with_images = kGemma3WithImages,
                 .activation = Activation::kGeluTanh,
                 .qk_norm = true,
                 .gemma = true,
                 .tied = true,
                 .post_norms = true,
                 .soft_caps = true,
                 .local_rope = true,
                 .full_every = 6,
                 .theta = 1000000.0f,
                 .hidden_scale_layers = 62},
};

std::array<std::string_view, 2> hf_names(const Architecture& architecture) {
  return {architecture.hf, architecture.with_images.hf};
}

/// names_of: the names of an entry, of which some may be empty.
template <class NamesOf>
Result<const Architecture*> find(std::string_view name, std::string_view file,
                                 const NamesOf& names_of) {
  std::vector<std::string_view> known;
  for (const Architecture& architecture : kArchitectures) {
    for (const std::string_view own : names_of(architecture)) {
      if (!name.empty() && own == name) return &architecture;
      if (!own.empty()) known.push_back(own);
    }
  }
  return fail(ErrorCode::kUnknownArchitecture,
              "{}: architecture '{}' is not supported{}; these are: {}", file, name,
              suggestion(name, known), fmt::join(known, ", "));
}

}  // namespace

Result<const Architecture*> find_gguf_architecture(std::string_view name, std::string_view file) {
  return find(name, file, [](const Architecture& entry) { return std::array{entry.gguf}; });
}

Result<const Architecture*> find_hf_architecture(std::string_view name, std::string_view file) {
  return find(name, file, hf_names);
}

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Architecture& architecture : kArchitectures) {
    if (!architecture.gguf.empty()) names.emplace_back(architecture.gguf);
    for (const std::string_view name : hf_names(architecture)) {
      if (!name.empty()) names.emplace_back(name);
    }
  }
  return names;
}

void apply_architecture(const Architecture& architecture, ModelConfig& config) {
  config.activation = architecture.activation;
  config.qkv_bias = architecture.qkv_bias;
  config.qk_norm = architecture.qk_norm;
  config.fused_weights = architecture.fused_weights;
  config.post_norms = architecture.post_norms;
  if (architecture.gemma) config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
}

void apply_layer_pattern(const Architecture& architecture, uint32_t window, ModelConfig& config) {
  const auto every = [](uint32_t layer, uint32_t n) { return n != 0 && (layer + 1) % n == 0; };
  config.window.resize(config.n_layer);
  config.layer_rope.resize(config.n_layer);
  for (uint32_t layer = 0; layer < config.n_layer; ++layer) {
    const bool full = window == 0 || every(layer, architecture.full_every);
    config.window[layer] = full ? 0 : window;
    config.layer_rope[layer] = every(layer, architecture.unrotated_every) ? LayerRope::kNone
                               : architecture.local_rope && !full         ? LayerRope::kLocal
                                                                          : LayerRope::kGlobal;
  }
}

}  // namespace reprise

#include "model/architecture.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/nearest.h"

namespace reprise {
namespace {

using kernels::Activation;

constexpr std::array kArchitectures{
    // Llama 2 and 3, SmolLM2, and every GGUF of Mistral
    Architecture{.gguf = "llama", .hf = "LlamaForCausalLM", .gguf_interleaved = true},
    Architecture{.gguf = "", .hf = "MistralForCausalLM"},
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

Result<const Architecture*> find(std::string_view name, std::string_view file,
                                 std::string_view Architecture::*field) {
  std::vector<std::string_view> known;
  for (const Architecture& architecture : kArchitectures) {
    if (!name.empty() && architecture.*field == name) return &architecture;
    if (!(architecture.*field).empty()) known.push_back(architecture.*field);
  }
  return fail(ErrorCode::kUnknownArchitecture,
              "{}: architecture '{}' is not supported{}; these are: {}", file, name,
              suggestion(name, known), fmt::join(known, ", "));
}

}  // namespace

Result<const Architecture*> find_gguf_architecture(std::string_view name, std::string_view file) {
  return find(name, file, &Architecture::gguf);
}

Result<const Architecture*> find_hf_architecture(std::string_view name, std::string_view file) {
  return find(name, file, &Architecture::hf);
}

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Architecture& architecture : kArchitectures) {
    if (!architecture.gguf.empty()) names.emplace_back(architecture.gguf);
    names.emplace_back(architecture.hf);
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

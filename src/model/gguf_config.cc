// ModelConfig from the metadata of a GGUF file.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/try.h"
#include "formats/gguf.h"
#include "model/architecture.h"
#include "model/key_reader.h"
#include "model/tensor_floats.h"

namespace reprise {
namespace {

/// Keys under the architecture's name.
class GgufKeys : public KeyReader {
 public:
  GgufKeys(const GgufFile& file, std::string_view architecture)
      : KeyReader(file.name()), gguf_(file), prefix_(std::string(architecture) + ".") {}

  std::string full_name(std::string_view key) const override { return prefix_ + std::string(key); }

  /// Arrays with one value per layer count as that value when all layers agree.
  Result<std::optional<double>> find(std::string_view key) const override {
    const GgufValue* value = gguf_.find(full_name(key));
    if (value == nullptr) return std::nullopt;
    return std::visit([&](const auto& stored) { return number_of(key, stored); }, *value);
  }

  Result<std::string_view> text(std::string_view key) const {
    const std::string name = full_name(key);
    if (gguf_.find(name) == nullptr) return std::string_view();
    return gguf_.get_string(name);
  }

 private:
  template <class Value>
  Result<std::optional<double>> number_of(std::string_view key, const Value& value) const {
    if constexpr (std::is_same_v<Value, bool> || std::is_same_v<Value, std::string_view>) {
      return wrong_type(key);
    } else if constexpr (std::is_arithmetic_v<Value>) {
      return static_cast<double>(value);
    } else {
      if (value.empty() || !std::is_arithmetic_v<typename Value::value_type> ||
          std::is_same_v<typename Value::value_type, bool>) {
        return wrong_type(key);
      }
      if (std::any_of(value.begin(), value.end(),
                      [&](const auto& other) { return other != value.front(); })) {
        return fail(ErrorCode::kUnsupported,
                    "{}: {} differs between layers, which is not supported", file(),
                    full_name(key));
      }
      return number_of(key, static_cast<typename Value::value_type>(value.front()));
    }
  }
  tl::unexpected<Error> wrong_type(std::string_view key) const {
    return fail(ErrorCode::kBadType, "{}: {} is not a number", file(), full_name(key));
  }

  const GgufFile& gguf_;
  std::string prefix_;
};

constexpr ConfigKeys kKeys{.n_head = "attention.head_count",
                           .n_kv_head = "attention.head_count_kv",
                           .head_dim = "attention.key_length",
                           .rope_dims = "rope.dimension_count",
                           .rope_factors = "rope factor tensors"};

/// Of yarn_ext_factor; below 0 it is not set.
constexpr NumberRange kRamp{-1e6, 1e6};

Status read_sizes(const GgufFile& file, const GgufKeys& keys, ModelConfig& config) {
  REPRISE_TRY(config.n_layer, keys.count("block_count", kLayers));
  REPRISE_TRY(config.hidden, keys.count("embedding_length", kHidden));
  REPRISE_TRY(config.ffn, keys.count("feed_forward_length", kFfn));
  REPRISE_TRY(config.n_head, keys.count(kKeys.n_head, kHeads));
  REPRISE_TRY(config.n_kv_head, keys.count_or(kKeys.n_kv_head, kHeads, config.n_head));
  REPRISE_TRY(config.head_dim,
              keys.count_or(kKeys.head_dim, kHeadDim, config.hidden / config.n_head));
  REPRISE_TRY(const uint32_t value_dim,
              keys.count_or("attention.value_length", kHeadDim, config.head_dim));
  if (value_dim != config.head_dim) {
    return keys.bad("attention.value_length", "differs from attention.key_length");
  }
  REPRISE_TRY(config.context, keys.count("context_length", kContext));
  REPRISE_TRY(config.norm_eps, keys.number("attention.layer_norm_rms_epsilon", kEps));
  const TensorView* embedding = file.tensor("token_embd.weight");
  if (embedding == nullptr) {
    return fail(ErrorCode::kMissingTensor, "{}: token_embd.weight is missing", file.name());
  }
  if (embedding->shape.size() != 2 || embedding->shape[0] > kVocab.max) {
    return fail(ErrorCode::kBadShape, "{}: token_embd.weight is not [vocab, {}]", file.name(),
                config.hidden);
  }
  config.vocab = static_cast<uint32_t>(embedding->shape[0]);
  config.tied_embeddings = file.tensor("output.weight") == nullptr;
  REPRISE_TRY(const uint32_t experts, keys.count_or("expert_count", {0, 1 << 20}, 0));
  if (experts != 0) {
    return fail(ErrorCode::kUnsupported, "{}: mixture-of-experts models are not supported",
                file.name());
  }
  return {};
}

Result<std::vector<float>> rope_factors(const GgufFile& file, std::string_view name) {
  const TensorView* tensor = file.tensor(name);
  if (tensor == nullptr) return std::vector<float>();
  return tensor_floats(*tensor);
}

Status read_factors(const GgufFile& file, RopeConfig& rope) {
  REPRISE_TRY(rope.short_factors, rope_factors(file, "rope_factors_short.weight"));
  REPRISE_TRY(rope.long_factors, rope_factors(file, "rope_factors_long.weight"));
  if (rope.short_factors.empty() != rope.long_factors.empty()) {
    return fail(ErrorCode::kMissingTensor,
                "{}: only one of rope_factors_short.weight and rope_factors_long.weight is there",
                file.name());
  }
  if (!rope.short_factors.empty()) {
    rope.scaling = RopeScaling::kLongRope;
    return {};
  }
  REPRISE_TRY(rope.short_factors, rope_factors(file, "rope_freqs.weight"));
  rope.long_factors = rope.short_factors;
  return {};
}

// Also what multiplies cos and sin. llama.cpp's converters write transformers' attention_factor,
// which stands in place of YaRN's own, as yarn_attn_factor, and 1 where nothing was said; llama.cpp
// itself reads it for few families. A ramp times 0 is linear scaling, without a factor (ggml).
Status read_yarn(const GgufKeys& keys, RopeConfig& rope, float& attention_factor) {
  REPRISE_TRY(rope.beta_fast, keys.number_or("rope.scaling.yarn_beta_fast", kScale, 32.0f));
  REPRISE_TRY(rope.beta_slow, keys.number_or("rope.scaling.yarn_beta_slow", kScale, 1.0f));
  REPRISE_TRY(const float ramp, keys.number_or("rope.scaling.yarn_ext_factor", kRamp, -1.0f));
  REPRISE_TRY(const float named, keys.number_or("rope.scaling.yarn_attn_factor", kScale, 1.0f));
  rope.scaling = ramp == 0.0f ? RopeScaling::kLinear : RopeScaling::kYarn;
  rope.yarn_extrapolation = ramp < 0.0f ? 1.0f : ramp;  // below 0 it is not set
  if (ramp == 0.0f) return {};
  attention_factor = named == 1.0f ? yarn_mscale(rope.factor) : named;
  return {};
}

Status read_rope(const GgufFile& file, const GgufKeys& keys, const Architecture& architecture,
                 ModelConfig& config) {
  RopeConfig& rope = config.rope;
  REPRISE_TRY(rope.theta, keys.number_or("rope.freq_base", kTheta, architecture.theta));
  REPRISE_TRY(rope.dims, keys.count_or(kKeys.rope_dims, kHeadDim, config.head_dim));
  config.local_rope.dims = rope.dims;  // sliding-window layers are never scaled
  REPRISE_TRY(config.local_rope.theta,
              keys.number_or("rope.freq_base_swa", kTheta, config.local_rope.theta));
  REPRISE_TRY(rope.original_context,
              keys.count_or("rope.scaling.original_context_length", kContext, config.context));
  REPRISE_CHECK(read_factors(file, rope));
  REPRISE_TRY(const float old_factor, keys.number_or("rope.scale_linear", kScale, 1.0f));
  REPRISE_TRY(rope.factor, keys.number_or("rope.scaling.factor", kScale, old_factor));
  REPRISE_TRY(const std::string_view scaling, keys.text("rope.scaling.type"));
  const bool untyped = scaling.empty() && rope.scaling == RopeScaling::kNone;
  float attention_factor = 1.0f;
  if (scaling == "linear" || (untyped && rope.factor != 1.0f)) {
    rope.scaling = RopeScaling::kLinear;
  } else if (scaling == "yarn") {
    REPRISE_CHECK(read_yarn(keys, rope, attention_factor));
  } else if (scaling == "longrope" && rope.scaling != RopeScaling::kLongRope) {
    return fail(ErrorCode::kMissingTensor, "{}: rope_factors_long.weight is missing", file.name());
  } else if (!scaling.empty() && scaling != "none" && scaling != "longrope") {
    return keys.bad("rope.scaling.type", "is not none, linear, yarn or longrope");
  }
  if (rope.scaling == RopeScaling::kLongRope) {
    const float extension =
        static_cast<float>(config.context) / static_cast<float>(rope.original_context);
    attention_factor = longrope_attention_factor(extension, rope.original_context);
    REPRISE_TRY(rope.attention_factor,
                keys.number_or("rope.scaling.attn_factor", kScale, attention_factor));
    return {};
  }
  REPRISE_TRY(rope.attention_factor, keys.number_or("rope.scaling.attn_factor", kScale, 1.0f));
  rope.attention_factor *= attention_factor;
  return {};
}

Status read_scales(const GgufKeys& keys, const Architecture& architecture, ModelConfig& config) {
  const bool by_hidden = architecture.hidden_scale_layers == config.n_layer;
  const uint32_t scaled_by = by_hidden ? config.hidden / config.n_head : config.head_dim;
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(scaled_by));
  if (architecture.multipliers) {
    REPRISE_TRY(config.attention_scale,
                keys.number_or("attention.scale", kScale, config.attention_scale));
    REPRISE_TRY(config.embedding_scale, keys.number_or("embedding_scale", kScale, 1.0f));
    REPRISE_TRY(config.residual_scale, keys.number_or("residual_scale", kScale, 1.0f));
    REPRISE_TRY(const float logit_divisor, keys.number_or("logit_scale", kScale, 1.0f));
    config.logit_scale = 1.0f / logit_divisor;
  }
  if (architecture.soft_caps) {
    REPRISE_TRY(config.attention_soft_cap,
                keys.number_or("attn_logit_softcapping", kCap, architecture.attention_soft_cap));
    REPRISE_TRY(config.logit_soft_cap,
                keys.number_or("final_logit_softcapping", kCap, architecture.logit_soft_cap));
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_gguf_config(const GgufFile& file) {
  REPRISE_TRY(const std::string_view name, file.get_string("general.architecture"));
  REPRISE_TRY(const Architecture* architecture, find_gguf_architecture(name, file.name()));
  ModelConfig config;
  config.architecture = name;
  if (file.find("general.name") != nullptr) {
    REPRISE_TRY(config.name, file.get_string("general.name"));
  }
  const GgufKeys keys(file, name);
  REPRISE_CHECK(read_sizes(file, keys, config));
  apply_architecture(*architecture, config);
  config.interleaved_rope = architecture->gguf_interleaved;
  REPRISE_CHECK(read_rope(file, keys, *architecture, config));
  REPRISE_CHECK(read_scales(keys, *architecture, config));
  REPRISE_TRY(const uint32_t window,
              keys.count_or("attention.sliding_window", kWindow, architecture->gguf_window));
  apply_layer_pattern(*architecture, window, config);
  REPRISE_CHECK(check_config(config, kKeys, keys));
  return config;
}

}  // namespace reprise

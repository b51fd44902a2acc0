// ModelConfig from the config.json of a Hugging Face folder.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/try.h"
#include "formats/printable.h"
#include "formats/safetensors.h"
#include "model/architecture.h"
#include "model/key_reader.h"

namespace reprise {
namespace {

using Json = nlohmann::json;

/// Keys of one JSON object.
class JsonKeys : public KeyReader {
 public:
  /// path: how messages name the object, e.g. "rope_scaling."; empty for the whole file.
  JsonKeys(const Json& object, std::string file, std::string path = {})
      : KeyReader(std::move(file)), object_(object), path_(std::move(path)) {}

  std::string full_name(std::string_view key) const override { return path_ + std::string(key); }

  /// The value of a key; null when the key is absent or null.
  const Json* value(std::string_view key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(std::string_view key) const { return value(key) != nullptr; }

  Result<std::optional<double>> find(std::string_view key) const override {
    const Json* found = value(key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_number()) return wrong_type(key, "a number");
    return found->get<double>();
  }
  Result<bool> flag_or(std::string_view key, bool fallback) const {
    const Json* found = value(key);
    if (found == nullptr) return fallback;
    if (!found->is_boolean()) return wrong_type(key, "true or false");
    return found->get<bool>();
  }
  Result<std::string> text_or(std::string_view key, std::string fallback) const {
    const Json* found = value(key);
    if (found == nullptr) return fallback;
    if (!found->is_string()) return wrong_type(key, "a string");
    return found->get<std::string>();
  }
  /// Empty when absent.
  Result<std::vector<float>> numbers(std::string_view key) const {
    std::vector<float> values;
    const Json* found = value(key);
    if (found == nullptr) return values;
    if (!found->is_array()) return wrong_type(key, "a list of numbers");
    for (const Json& element : *found) {
      if (!element.is_number()) return wrong_type(key, "a list of numbers");
      values.push_back(element.get<float>());
    }
    return values;
  }
  /// The object of a key; kMissingKey, kBadType.
  Result<JsonKeys> object(std::string_view key) const {
    const Json* found = value(key);
    if (found == nullptr) return missing(key);
    if (!found->is_object()) return wrong_type(key, "an object");
    return JsonKeys(*found, file(), full_name(key) + ".");
  }

  tl::unexpected<Error> wrong_type(std::string_view key, std::string_view wanted) const {
    return fail(ErrorCode::kBadType, "{}: {} is not {}", file(), full_name(key), wanted);
  }

 private:
  const Json& object_;
  std::string path_;
};

constexpr ConfigKeys kKeys{.n_head = "num_attention_heads",
                           .n_kv_head = "num_key_value_heads",
                           .head_dim = "head_dim",
                           .rope_dims = "partial_rotary_factor",
                           .rope_factors = "rope factor list"};

Result<std::string> architecture_name(const JsonKeys& keys) {
  const Json* list = keys.value("architectures");
  if (list == nullptr) return keys.missing("architectures");
  if (!list->is_array() || list->empty() || !list->front().is_string()) {
    return keys.wrong_type("architectures", "a list of names");
  }
  return list->front().get<std::string>();
}

Status read_sizes(const JsonKeys& keys, const Architecture& architecture, ModelConfig& config) {
  REPRISE_TRY(config.n_layer, keys.count("num_hidden_layers", kLayers));
  REPRISE_TRY(config.hidden, keys.count("hidden_size", kHidden));
  REPRISE_TRY(config.ffn, keys.count("intermediate_size", kFfn));
  REPRISE_TRY(config.vocab, keys.count("vocab_size", kVocab));
  REPRISE_TRY(config.n_head, keys.count(kKeys.n_head, kHeads));
  REPRISE_TRY(config.n_kv_head, keys.count_or(kKeys.n_kv_head, kHeads, config.n_head));
  REPRISE_TRY(config.head_dim,
              keys.count_or(kKeys.head_dim, kHeadDim, config.hidden / config.n_head));
  REPRISE_TRY(config.context, keys.count("max_position_embeddings", kContext));
  REPRISE_TRY(config.norm_eps, keys.number("rms_norm_eps", kEps));
  REPRISE_TRY(config.tied_embeddings, keys.flag_or("tie_word_embeddings", architecture.tied));
  return {};
}

Status read_activation(const JsonKeys& keys, ModelConfig& config) {
  const std::string_view key = keys.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const bool silu = config.activation == kernels::Activation::kSilu;
  REPRISE_TRY(const std::string name, keys.text_or(key, silu ? "silu" : "gelu_pytorch_tanh"));
  if (name == "silu" || name == "swish") {
    config.activation = kernels::Activation::kSilu;
  } else if (name == "gelu_pytorch_tanh" || name == "gelu_new") {
    config.activation = kernels::Activation::kGeluTanh;
  } else {
    return keys.bad(key, "is not silu or gelu_pytorch_tanh");
  }
  return {};
}

Status read_yarn(const JsonKeys& scaling, RopeConfig& rope) {
  REPRISE_TRY(rope.beta_fast, scaling.number_or("beta_fast", kScale, 32.0f));
  REPRISE_TRY(rope.beta_slow, scaling.number_or("beta_slow", kScale, 1.0f));
  REPRISE_TRY(rope.yarn_truncate, scaling.flag_or("truncate", true));
  REPRISE_TRY(const float mscale, scaling.number_or("mscale", {0, 1e6}, 0.0f));
  REPRISE_TRY(const float mscale_all, scaling.number_or("mscale_all_dim", {0, 1e6}, 0.0f));
  const float factor = mscale != 0 && mscale_all != 0
                           ? yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, mscale_all)
                           : yarn_mscale(rope.factor);
  REPRISE_TRY(rope.attention_factor, scaling.number_or("attention_factor", kScale, factor));
  return {};
}

/// scaling: the rope_scaling object, or rope_parameters, which also holds theta.
Status read_scaling(const JsonKeys& scaling, uint32_t context, RopeConfig& rope) {
  REPRISE_TRY(const std::string legacy, scaling.text_or("type", "default"));
  REPRISE_TRY(const std::string type, scaling.text_or("rope_type", legacy));
  if (type == "default") return {};
  REPRISE_TRY(rope.original_context, scaling.count_or("original_max_position_embeddings", kContext,
                                                      rope.original_context));
  const float extension = static_cast<float>(context) / static_cast<float>(rope.original_context);
  const bool derived = type == "longrope" || type == "su" || type == "yarn";
  REPRISE_TRY(rope.factor, derived ? scaling.number_or("factor", kScale, extension)
                                   : scaling.number("factor", kScale));
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    REPRISE_TRY(rope.low_freq_factor, scaling.number("low_freq_factor", kScale));
    REPRISE_TRY(rope.high_freq_factor, scaling.number("high_freq_factor", kScale));
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      return scaling.bad("high_freq_factor", "is not above low_freq_factor");
    }
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    REPRISE_CHECK(read_yarn(scaling, rope));
  } else if (type == "longrope" || type == "su") {
    rope.scaling = RopeScaling::kLongRope;
    REPRISE_TRY(rope.short_factors, scaling.numbers("short_factor"));
    REPRISE_TRY(rope.long_factors, scaling.numbers("long_factor"));
    if (rope.short_factors.empty()) return scaling.missing("short_factor");
    if (rope.long_factors.empty()) return scaling.missing("long_factor");
    REPRISE_TRY(rope.attention_factor,
                scaling.number_or("attention_factor", kScale,
                                  longrope_attention_factor(rope.factor, rope.original_context)));
  } else {
    return scaling.bad("rope_type", "is not default, linear, llama3, yarn or longrope");
  }
  return {};
}

// int(head_dim * partial) of the reference, forgiving that e.g. 0.4 is not a binary fraction.
uint32_t rotated_dims(const ModelConfig& config, float partial) {
  return static_cast<uint32_t>(config.head_dim * static_cast<double>(partial) + 1e-3);
}

/// parameters: an object with theta and scaling.
Status read_parameters(const JsonKeys& parameters, const ModelConfig& config, RopeConfig& rope) {
  REPRISE_TRY(rope.theta, parameters.number_or("rope_theta", kTheta, rope.theta));
  if (parameters.has("partial_rotary_factor")) {
    REPRISE_TRY(const float partial, parameters.number("partial_rotary_factor", {0, 1}));
    rope.dims = rotated_dims(config, partial);
  }
  return read_scaling(parameters, config.context, rope);
}

Status read_rope(const JsonKeys& keys, const Architecture& architecture, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  REPRISE_TRY(rope.theta, keys.number_or("rope_theta", kTheta, architecture.theta));
  REPRISE_TRY(const float partial, keys.number_or("partial_rotary_factor", {0, 1}, 1.0f));
  rope.dims = rotated_dims(config, partial);
  REPRISE_TRY(rope.original_context,
              keys.count_or("original_max_position_embeddings", kContext, config.context));
  config.local_rope.dims = rope.dims;
  REPRISE_TRY(config.local_rope.theta,
              keys.number_or("rope_local_base_freq", kTheta, config.local_rope.theta));
  if (!keys.has("rope_parameters")) {
    if (!keys.has("rope_scaling")) return {};
    REPRISE_TRY(const JsonKeys scaling, keys.object("rope_scaling"));
    return read_scaling(scaling, config.context, rope);
  }
  REPRISE_TRY(const JsonKeys parameters, keys.object("rope_parameters"));
  if (!parameters.has("full_attention")) return read_parameters(parameters, config, rope);
  REPRISE_TRY(const JsonKeys full, parameters.object("full_attention"));
  REPRISE_CHECK(read_parameters(full, config, rope));
  if (!parameters.has("sliding_attention")) return {};
  REPRISE_TRY(const JsonKeys sliding, parameters.object("sliding_attention"));
  config.local_rope.original_context = config.context;
  return read_parameters(sliding, config, config.local_rope);
}

Status read_scales(const JsonKeys& keys, const Architecture& architecture, ModelConfig& config) {
  const auto head_dim = static_cast<float>(config.head_dim);
  if (architecture.gemma) {
    REPRISE_TRY(const float scalar, keys.number_or("query_pre_attn_scalar", kScale, head_dim));
    config.attention_scale = 1.0f / std::sqrt(scalar);
    config.norm_plus_one = true;
  } else {
    config.attention_scale = 1.0f / std::sqrt(head_dim);
  }
  if (architecture.multipliers) {
    REPRISE_TRY(config.attention_scale, keys.number_or("attention_multiplier", kScale, 1.0f));
    REPRISE_TRY(config.embedding_scale, keys.number_or("embedding_multiplier", kScale, 1.0f));
    REPRISE_TRY(config.residual_scale, keys.number_or("residual_multiplier", kScale, 1.0f));
    REPRISE_TRY(const float logit_divisor, keys.number_or("logits_scaling", kScale, 1.0f));
    config.logit_scale = 1.0f / logit_divisor;
  }
  if (architecture.soft_caps) {
    REPRISE_TRY(config.attention_soft_cap, keys.number_or("attn_logit_softcapping", kCap, 0.0f));
    REPRISE_TRY(config.logit_soft_cap, keys.number_or("final_logit_softcapping", kCap, 0.0f));
  }
  return {};
}

/// layer_types, where a file has them, say which layers have a window and the local theta.
Status read_layer_types(const JsonKeys& keys, const Architecture& architecture, uint32_t window,
                        ModelConfig& config) {
  const Json* types = keys.value("layer_types");
  if (types == nullptr) return {};
  if (!types->is_array()) return keys.wrong_type("layer_types", "a list");
  if (types->size() != config.n_layer) return keys.bad("layer_types", "is not one per layer");
  for (uint32_t layer = 0; layer < config.n_layer; ++layer) {
    const Json& type = (*types)[layer];
    const bool sliding = type == "sliding_attention";
    if (!sliding && type != "full_attention") {
      return keys.bad("layer_types", "holds something other than full_ and sliding_attention");
    }
    config.window[layer] = sliding ? window : 0;
    if (architecture.local_rope) {
      config.layer_rope[layer] = sliding ? LayerRope::kLocal : LayerRope::kGlobal;
    }
  }
  return {};
}

Status read_layers(const JsonKeys& keys, Architecture architecture, ModelConfig& config) {
  REPRISE_TRY(const bool use_window,
              keys.flag_or("use_sliding_window", !architecture.optional_window));
  uint32_t window = 0;
  if (use_window) {
    REPRISE_TRY(window, keys.count_or("sliding_window", kWindow, 0));
  }
  if (architecture.local_rope) {
    REPRISE_TRY(architecture.full_every,
                keys.count_or("sliding_window_pattern", kLayers, architecture.full_every));
  }
  apply_layer_pattern(architecture, window, config);
  if (architecture.optional_window && window != 0) {
    REPRISE_TRY(const uint32_t first,
                keys.count_or("max_window_layers", {0, kLayers.max}, config.n_layer));
    for (uint32_t layer = 0; layer < std::min(first, config.n_layer); ++layer) {
      config.window[layer] = 0;
    }
  }
  REPRISE_CHECK(read_layer_types(keys, architecture, window, config));
  if (architecture.unrotated_every == 0) return {};
  REPRISE_TRY(const std::vector<float> rotated, keys.numbers("no_rope_layers"));
  if (rotated.empty()) return {};
  if (rotated.size() != config.n_layer) return keys.bad("no_rope_layers", "is not one per layer");
  for (uint32_t layer = 0; layer < config.n_layer; ++layer) {
    config.layer_rope[layer] = rotated[layer] != 0 ? LayerRope::kGlobal : LayerRope::kNone;
  }
  return {};
}

/// keys: of the text model.
Status read_text_model(const JsonKeys& keys, const Architecture& architecture,
                       ModelConfig& config) {
  REPRISE_CHECK(read_sizes(keys, architecture, config));
  apply_architecture(architecture, config);
  REPRISE_CHECK(read_activation(keys, config));
  REPRISE_CHECK(read_rope(keys, architecture, config));
  REPRISE_CHECK(read_scales(keys, architecture, config));
  REPRISE_CHECK(read_layers(keys, architecture, config));
  return check_config(config, kKeys, keys);
}

/// text_config of a model that also reads images, with its class's defaults.
Result<Json> text_config(const JsonKeys& keys, const WithImages& stored) {
  REPRISE_TRY(const JsonKeys text, keys.object("text_config"));
  REPRISE_TRY(const std::string type, text.text_or("model_type", std::string(stored.text)));
  if (type != stored.text) {
    return fail(ErrorCode::kUnsupported, "{}: {} {} is not supported; {} is", keys.file(),
                text.full_name("model_type"), printable(type), stored.text);
  }
  Json merged = Json::parse(stored.defaults);
  merged.update(*keys.value("text_config"));
  return merged;
}

}  // namespace

Result<ModelConfig> read_hf_config(const Json& json, const std::string& file) {
  if (!json.is_object()) return fail(ErrorCode::kBadType, "{}: not an object", file);
  const JsonKeys keys(json, file);
  REPRISE_TRY(const std::string name, architecture_name(keys));
  REPRISE_TRY(const Architecture* architecture, find_hf_architecture(name, file));
  if (keys.has("quantization_config")) {
    return fail(ErrorCode::kUnsupported,
                "{}: quantization_config: quantised folders are not read; use a GGUF file", file);
  }
  ModelConfig config;
  config.architecture = name;
  if (name != architecture->with_images.hf) {
    REPRISE_CHECK(read_text_model(keys, *architecture, config));
    return config;
  }
  REPRISE_TRY(const Json text, text_config(keys, architecture->with_images));
  REPRISE_CHECK(read_text_model(JsonKeys(text, file, "text_config."), *architecture, config));
  return config;
}

Result<ModelConfig> read_folder_config(const SafetensorsFolder& folder) {
  REPRISE_TRY(ModelConfig config, read_hf_config(folder.config(), folder.path() + "/config.json"));
  const std::filesystem::path path = folder.path();
  config.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  return config;
}

}  // namespace reprise

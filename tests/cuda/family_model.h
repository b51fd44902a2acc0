// The tiny models of tests/fixtures/models, made large enough for the kernels of a GPU.
#pragma once

#include <cmath>
#include <string>

#include "engine/tiny_model.h"
#include "model/golden_model.h"

namespace reprise::test {

constexpr uint32_t kFamilyHeads = 4, kFamilyKvHeads = 2, kFamilyFfn = 320, kFamilyContext = 512;

/// Rows and columns of a tensor by the name that transformers gives it.
inline std::vector<uint64_t> family_shape(const std::string& name, uint64_t hidden,
                                          uint64_t head_dim, uint64_t vocab, uint64_t ffn) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const uint64_t q = kFamilyHeads * head_dim, kv = kFamilyKvHeads * head_dim;
  if (has("q_norm") || has("k_norm")) return {head_dim};
  if (has("norm")) return {hidden};
  if (has("embed_tokens") || has("lm_head")) return {vocab, hidden};
  const bool down = has("down_proj"), out = has("o_proj");
  const uint64_t rows = has("qkv_proj")                      ? q + 2 * kv
                        : has("q_proj")                      ? q
                        : has("k_proj") || has("v_proj")     ? kv
                        : has("gate_up_proj")                ? 2 * ffn
                        : has("gate_proj") || has("up_proj") ? ffn
                                                             : hidden;
  if (has("bias")) return {rows};
  return {rows, down ? ffn : out ? q : hidden};
}

/// Every number of the list several times, until there are count.
inline nlohmann::json stretched(const nlohmann::json& list, size_t count) {
  nlohmann::json longer;
  for (size_t i = 0; i < count; ++i) longer.push_back(list[i * list.size() / count]);
  return longer;
}

inline std::string byte_tokenizer_json() {
  nlohmann::json vocab, added;
  const auto tokens = byte_tokens();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i < 256) vocab[tokens[i]] = i;
    if (i >= 256) added.push_back({{"id", i}, {"content", tokens[i]}, {"special", true}});
  }
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const nlohmann::json json = {
      {"version", "1.0"},
      {"added_tokens", added},
      {"pre_tokenizer", byte_level},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  return json.dump();
}

/// A folder of the family's configuration with heads of head_dim, a window of 24 where it has one,
/// and a tokenizer. one_layer: without the others.
inline GoldenFolder family_folder(const std::string& name, uint32_t head_dim,
                                  uint32_t ffn = kFamilyFfn, bool one_layer = false) {
  Golden golden = read_golden(name);
  nlohmann::json& config = golden.config;
  const uint32_t hidden = config.contains("head_dim") ? 256 : kFamilyHeads * head_dim;
  const auto vocab = static_cast<uint32_t>(byte_tokens().size());
  if (config.contains("head_dim")) config["head_dim"] = head_dim;
  config["hidden_size"] = hidden;
  config["intermediate_size"] = ffn;
  config["vocab_size"] = vocab;
  config["max_position_embeddings"] = kFamilyContext;
  if (config.value("sliding_window", nlohmann::json()).is_number()) config["sliding_window"] = 24;
  nlohmann::json& rope = config["rope_parameters"];
  if (rope.contains("original_max_position_embeddings")) {
    rope["original_max_position_embeddings"] = kFamilyContext / 4;
    if (config.contains("original_max_position_embeddings"))
      config["original_max_position_embeddings"] = kFamilyContext / 4;
  }
  for (const char* factors : {"short_factor", "long_factor"}) {
    const size_t count = head_dim * 3 / 8;  // pairs of the three quarters that rotate
    if (rope.contains(factors)) rope[factors] = stretched(rope[factors], count);
  }
  if (one_layer) {
    config["num_hidden_layers"] = 1;
    std::erase_if(golden.tensors, [](const GoldenTensor& tensor) {
      return tensor.name.find("layers.") != std::string::npos &&
             tensor.name.find("layers.0.") == std::string::npos;
    });
  }
  for (GoldenTensor& tensor : golden.tensors) {
    tensor.shape = family_shape(tensor.name, hidden, head_dim, vocab, ffn);
    if (tensor.shape.size() != 2) continue;
    const auto cols = static_cast<float>(tensor.shape.back());
    tensor.scale = std::exp2(std::round(std::log2(std::sqrt(3.0f / cols))));
  }
  return GoldenFolder(golden, {{"tokenizer.json", byte_tokenizer_json()}});
}

}  // namespace reprise::test

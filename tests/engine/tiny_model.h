// A random Llama, or another family, with a byte-level tokenizer, written once per test run.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/float16.h"
#include "formats/gguf_builder.h"
#include "reprise/engine.h"

namespace reprise::test {

inline std::string utf8_of(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

/// GPT-2's printable character of every byte, in byte order, then three special tokens.
inline std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    tokens.push_back(utf8_of(printable ? byte : next++));
  }
  tokens.insert(tokens.end(), {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  return tokens;
}

inline void add_byte_tokenizer(GgufBuilder& builder) {
  const auto tokens = byte_tokens();
  std::vector<int32_t> types(tokens.size(), 1);
  for (size_t i = 256; i < tokens.size(); ++i) types[i] = 3;
  builder.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "gpt-2");
  builder.add_strings("tokenizer.ggml.tokens", tokens);
  builder.add_array("tokenizer.ggml.token_type", types);
  builder.add_strings("tokenizer.ggml.merges", {"t h", "e r"});
  builder.add("tokenizer.ggml.eos_token_id", uint32_t{258});
}

struct TinyShape {
  uint32_t head_dim = 32, layers = 2;
  /// "", "linear" or "yarn", by 4 of 512; "llama3" or "longrope", by lists of divisors; "partial":
  /// half of a head is rotated
  std::string rope_scaling = {};
  std::string architecture = "llama";  ///< or "gemma3": two rotary tables, every sixth layer full
  uint32_t window = 0;                 ///< of layers that are not full; 0: they see everything
};

class TinyModelWriter {
 public:
  explicit TinyModelWriter(const TinyShape& shape)
      : head_dim_(shape.head_dim),
        layers_(shape.layers),
        architecture_(shape.architecture),
        gemma_(shape.architecture == "gemma3"),
        rotated_(shape.rope_scaling == "partial" ? head_dim_ / 2 : head_dim_) {
    if (shape.window > 0) add("attention.sliding_window", shape.window);
    scale_rope(shape.rope_scaling);
  }

  void write(const std::string& path) {
    builder_.add("general.architecture", architecture_).add("general.name", "tiny");
    add("block_count", layers_).add("context_length", uint32_t{2048});
    add("embedding_length", kHidden).add("feed_forward_length", kFfn);
    add("attention.head_count", kHeads);
    add("attention.head_count_kv", kKvHeads);
    add("attention.layer_norm_rms_epsilon", 1e-5f);
    add("attention.key_length", head_dim_);
    add("attention.value_length", head_dim_);
    add("rope.dimension_count", rotated_);
    add_byte_tokenizer(builder_);
    matrix("token_embd.weight", byte_tokens().size(), kHidden);
    norm("output_norm.weight");
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      const std::string name = "blk." + std::to_string(layer) + ".";
      norm(name + "attn_norm.weight");
      norm(name + "ffn_norm.weight");
      matrix(name + "attn_q.weight", kHeads * head_dim_, kHidden);
      matrix(name + "attn_k.weight", kKvHeads * head_dim_, kHidden);
      matrix(name + "attn_v.weight", kKvHeads * head_dim_, kHidden);
      matrix(name + "attn_output.weight", kHidden, kHeads * head_dim_);
      matrix(name + "ffn_gate.weight", kFfn, kHidden);
      matrix(name + "ffn_up.weight", kFfn, kHidden);
      matrix(name + "ffn_down.weight", kHidden, kFfn);
      if (gemma_) gemma_norms(name);
    }
    builder_.write(path);
  }

 private:
  static constexpr uint32_t kHidden = 128, kFfn = 192, kHeads = 4, kKvHeads = 2;

  /// A key of the architecture.
  template <class Value>
  TinyModelWriter& add(const std::string& key, const Value& value) {
    builder_.add(architecture_ + "." + key, value);
    return *this;
  }
  void scale_rope(const std::string& scaling) {
    if (scaling.empty() || scaling == "partial") return;
    add("rope.scaling.original_context_length", uint32_t{512});
    std::vector<float> slow(rotated_ / 2, 1.0f), slower(rotated_ / 2);
    for (size_t pair = 0; pair < slower.size(); ++pair) {
      if (pair >= slow.size() / 2) slow[pair] = 4.0f;  // as Llama 3.1: long wavelengths alone
      slower[pair] = 1.5f + 0.25f * static_cast<float>(pair);
    }
    if (scaling == "llama3") builder_.tensor("rope_freqs.weight", {slow.size()}, slow);
    if (scaling == "longrope") {
      builder_.tensor("rope_factors_short.weight", {slow.size()}, slow);
      builder_.tensor("rope_factors_long.weight", {slower.size()}, slower);
    }
    if (scaling == "llama3" || scaling == "longrope") return;
    add("rope.scaling.type", scaling);
    add("rope.scaling.factor", 4.0f);
  }
  void norm(const std::string& name, size_t size = kHidden) {
    builder_.tensor(name, {size}, std::vector<float>(size, 1.0f));
  }
  void gemma_norms(const std::string& layer) {
    norm(layer + "attn_q_norm.weight", head_dim_);
    norm(layer + "attn_k_norm.weight", head_dim_);
    norm(layer + "post_attention_norm.weight");
    norm(layer + "post_ffw_norm.weight");
  }
  // Q8_0: blocks of a half-precision scale and 32 bytes.
  void matrix(const std::string& name, size_t rows, size_t cols) {
    std::string bytes;
    const uint16_t scale = to_f16(2.0f / 127.0f / std::sqrt(static_cast<float>(cols))).bits;
    for (size_t block = 0; block < rows * cols / 32; ++block) {
      bytes.append(reinterpret_cast<const char*>(&scale), 2);
      for (int i = 0; i < 32; ++i)
        bytes += static_cast<char>(static_cast<int>(random_() % 255) - 127);
    }
    builder_.tensor(name, TensorType::kQ8_0, {rows, cols}, bytes);
  }

  const uint32_t head_dim_, layers_;
  const std::string architecture_;
  const bool gemma_;
  const uint32_t rotated_;  // dimensions of a head
  GgufBuilder builder_;
  std::mt19937 random_{3};
};

/// A folder that is removed at the end of the program.
inline const std::string& scratch_folder() {
  struct Folder {
    std::string path;
    Folder() {
      std::string name = (std::filesystem::temp_directory_path() / "reprise-XXXXXX").string();
      path = mkdtemp(name.data());
    }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder folder;
  return folder.path;
}

inline std::string tiny_model(const TinyShape& shape = {}) {
  const std::string file =
      fmt::format("{}/tiny{}-{}{}-{}-{}.gguf", scratch_folder(), shape.head_dim, shape.layers,
                  shape.rope_scaling, shape.architecture, shape.window);
  if (!std::filesystem::exists(file)) TinyModelWriter(shape).write(file);
  return file;
}

inline EngineOptions tiny_options() {
  EngineOptions options;
  options.model = tiny_model();
  options.threads = 2;
  options.chunk = 64;
  options.kv_memory = 64 << 20;
  return options;
}

inline std::unique_ptr<Engine> tiny_engine(const EngineOptions& options = tiny_options()) {
  auto engine = Engine::load(options);
  if (!engine) throw std::runtime_error(engine.error().message);
  return std::move(*engine);
}

/// Pseudo-random text tokens of the tiny model.
inline std::vector<int32_t> tiny_prompt(size_t length, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(length);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
  return tokens;
}

}  // namespace reprise::test

#include "model/tensor_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "base/try.h"

namespace reprise {
namespace {

constexpr TensorNames kGgufNames{.embedding = "token_embd",
                                 .final_norm = "output_norm",
                                 .lm_head = "output",
                                 .layer = "blk.{}.",
                                 .attn_norm = "attn_norm",
                                 .q = "attn_q",
                                 .k = "attn_k",
                                 .v = "attn_v",
                                 .qkv = "attn_qkv",
                                 .q_norm = "attn_q_norm",
                                 .k_norm = "attn_k_norm",
                                 .o = "attn_output",
                                 .attn_post_norm = "post_attention_norm",
                                 .mlp_norm = "ffn_norm",
                                 .gate = "ffn_gate",
                                 .up = "ffn_up",
                                 .gate_up = "ffn_up",
                                 .down = "ffn_down",
                                 .mlp_post_norm = "post_ffw_norm"};

constexpr TensorNames kFolderNames{.embedding = "model.embed_tokens",
                                   .final_norm = "model.norm",
                                   .lm_head = "lm_head",
                                   .layer = "model.layers.{}.",
                                   .attn_norm = "input_layernorm",
                                   .q = "self_attn.q_proj",
                                   .k = "self_attn.k_proj",
                                   .v = "self_attn.v_proj",
                                   .qkv = "self_attn.qkv_proj",
                                   .q_norm = "self_attn.q_norm",
                                   .k_norm = "self_attn.k_norm",
                                   .o = "self_attn.o_proj",
                                   .attn_post_norm = "",
                                   .mlp_norm = "post_attention_layernorm",
                                   .gate = "mlp.gate_proj",
                                   .up = "mlp.up_proj",
                                   .gate_up = "mlp.gate_up_proj",
                                   .down = "mlp.down_proj",
                                   .mlp_post_norm = ""};

// With norms on both sides, the name of the second norm moves to the attention's output.
constexpr TensorNames post_norm_names() {
  TensorNames names = kFolderNames;
  names.attn_post_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return names;
}
constexpr TensorNames kFolderPostNormNames = post_norm_names();

// True when part lies inside whole.
bool contains(std::span<const std::byte> whole, std::span<const std::byte> part) {
  const std::less_equal<const std::byte*> not_after;
  return not_after(whole.data(), part.data()) &&
         not_after(part.data() + part.size(), whole.data() + whole.size());
}

}  // namespace

Result<TensorSource> TensorSource::open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    REPRISE_TRY(SafetensorsFolder folder, SafetensorsFolder::open(path));
    return TensorSource(path, std::move(folder));
  }
  REPRISE_TRY(GgufFile file, GgufFile::open(path));
  return TensorSource(path, std::move(file));
}

Result<ModelConfig> TensorSource::config() const {
  if (const auto* gguf = std::get_if<GgufFile>(&file_)) return read_gguf_config(*gguf);
  return read_folder_config(std::get<SafetensorsFolder>(file_));
}

const TensorNames& TensorSource::names(const ModelConfig& config) const {
  if (std::holds_alternative<GgufFile>(file_)) return kGgufNames;
  return config.post_norms ? kFolderPostNormNames : kFolderNames;
}

const TensorView* TensorSource::find(std::string_view name) const {
  return std::visit([&](const auto& file) { return file.tensor(name); }, file_);
}

Result<const TensorView*> TensorSource::require(std::string_view name,
                                                std::span<const uint64_t> shape) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) {
    return fail(ErrorCode::kMissingTensor, "{}: tensor {} is missing", path_, name);
  }
  if (!std::ranges::equal(tensor->shape, shape)) {
    return fail(ErrorCode::kBadShape, "{}: tensor {} is [{}], the configuration needs [{}]", path_,
                name, fmt::join(tensor->shape, ", "), fmt::join(shape, ", "));
  }
  return tensor;
}

const std::vector<TensorView>& TensorSource::tensors() const {
  return std::visit(
      [](const auto& file) -> const auto& { return file.tensors(); }, file_);
}

void TensorSource::release(const TensorView& tensor) const {
  if (const auto* gguf = std::get_if<GgufFile>(&file_)) return gguf->file().release(tensor.bytes);
  for (const MappedFile& file : std::get<SafetensorsFolder>(file_).files()) {
    if (contains(file.bytes(), tensor.bytes)) file.release(tensor.bytes);
  }
}

}  // namespace reprise

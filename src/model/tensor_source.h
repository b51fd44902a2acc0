// The tensors of a model by the role they play, whatever the file calls them.
#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/tensor_type.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
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

class TensorSource {
 public:
  /// A GGUF file or a safetensors folder. Errors: those of the formats' open.
  static Result<TensorSource> open(const std::string& path);

  Result<ModelConfig> config() const;
  /// Names under which a model of this configuration is stored.
  const TensorNames& names(const ModelConfig& config) const;

  const TensorView* find(std::string_view name) const;
  /// The tensor with exactly this shape; kMissingTensor and kBadShape name it.
  Result<const TensorView*> require(std::string_view name, std::span<const uint64_t> shape) const;
  const std::vector<TensorView>& tensors() const;
  /// Gives the pages of a tensor that has been read back to the kernel.
  void release(const TensorView& tensor) const;

 private:
  using File = std::variant<GgufFile, SafetensorsFolder>;
  TensorSource(std::string path, File file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  File file_;
};

}  // namespace reprise

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
#include "model/random_model.h"
#include "model/tensor_names.h"

namespace reprise {

class TensorSource {
 public:
  /// A GGUF file, a safetensors folder, or a random model ("random:NAME"). Errors: those of the
  /// formats' open and of RandomModel::make.
  static Result<TensorSource> open(const std::string& path);

  std::string format() const;  ///< "GGUF v3", "safetensors" or "random"
  Result<ModelConfig> config() const;
  /// Names under which a model of this configuration is stored.
  TensorNames names(const ModelConfig& config) const;

  const TensorView* find(std::string_view name) const;
  /// The tensor with exactly this shape; kMissingTensor and kBadShape name it.
  Result<const TensorView*> require(std::string_view name, std::span<const uint64_t> shape) const;
  /// Those of the text model; a folder may hold others beside it.
  const std::vector<TensorView>& tensors() const;
  size_t others() const;  ///< tensors of the file that are not the text model's
  /// Gives the pages of a tensor that has been read back to the kernel.
  void release(const TensorView& tensor) const;

 private:
  using File = std::variant<GgufFile, SafetensorsFolder, RandomModel>;
  TensorSource(std::string path, File file) : path_(std::move(path)), file_(std::move(file)) {}
  void keep_text();
  const std::vector<TensorView>& all() const;

  std::string path_;
  File file_;
  const TextRoot* root_ = &text_roots().front();  // of a folder
  std::vector<TensorView> text_;                  // its tensors, where they are not all there are
};

}  // namespace reprise

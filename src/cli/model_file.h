// What a model file says about itself, without loading its weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/tokenizer_data.h"
#include "kernels/kv_page.h"
#include "model/config.h"
#include "model/tensor_source.h"

namespace reprise::cli {

class ModelFile {
 public:
  /// model: as --model takes it.
  static Result<ModelFile> open(const std::string& model);

  const std::string& path() const { return path_; }
  std::string format() const { return source_->format(); }
  const std::vector<TensorView>& tensors() const { return source_->tensors(); }
  /// Tensors of the file that are not the text model's.
  size_t other_tensors() const { return source_->others(); }
  uint64_t tensor_bytes() const;
  /// What each of count devices that share the model holds: see DeviceModel; expanded: in F32.
  uint64_t tensor_bytes(const ModelConfig& config, uint32_t count, bool expanded) const;
  Result<ModelConfig> config() const { return source_->config(); }
  Result<TokenizerData> tokenizer() const;

 private:
  std::string path_;
  std::unique_ptr<TensorSource> source_;
};

/// Bytes of K and V that one token takes over all layers.
uint64_t kv_bytes_per_token(const ModelConfig& config, kernels::KvType type);

}  // namespace reprise::cli

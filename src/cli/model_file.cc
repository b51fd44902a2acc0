#include "cli/model_file.h"

#include "base/try.h"
#include "engine/model_path.h"

namespace reprise::cli {

Result<ModelFile> ModelFile::open(const std::string& model) {
  ModelFile file;
  REPRISE_TRY(file.path_, resolve_model(model));
  REPRISE_TRY(TensorSource source, TensorSource::open(file.path_));
  file.source_ = std::make_unique<TensorSource>(std::move(source));
  return file;
}

uint64_t ModelFile::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const TensorView& tensor : tensors()) bytes += tensor.bytes.size();
  return bytes;
}

Result<TokenizerData> ModelFile::tokenizer() const { return read_tokenizer(path_); }

uint64_t kv_bytes_per_token(const ModelConfig& config, kernels::KvType type) {
  const kernels::KvLayout layout{type, config.n_kv_head, config.head_dim};
  return layout.page_bytes() / kernels::kPageTokens * config.n_layer;
}

}  // namespace reprise::cli

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

uint64_t ModelFile::tensor_bytes(const ModelConfig& config, uint32_t count, bool expanded) const {
  const auto bytes = [&](const TensorView& tensor) {
    const TensorTypeInfo& type = tensor_type_info(tensor.type);
    const uint64_t stored = tensor.bytes.size();
    return expanded ? stored / type.block_bytes * type.block * sizeof(float) : stored;
  };
  uint64_t all = 0;
  for (const TensorView& tensor : tensors()) all += bytes(tensor);
  if (count == 1) return all;
  const std::string name = std::string(source_->names(config).embedding) + ".weight";
  const TensorView* embedding = source_->find(name);
  const uint64_t whole = embedding != nullptr ? bytes(*embedding) : 0;
  const uint64_t shared = config.tied_embeddings ? all : all - whole;
  return whole + shared / count;
}

Result<TokenizerData> ModelFile::tokenizer() const { return read_tokenizer(path_); }

uint64_t kv_bytes_per_token(const ModelConfig& config, kernels::KvType type) {
  const kernels::KvLayout layout{type, config.n_kv_head, config.head_dim};
  return layout.page_bytes() / kernels::kPageTokens * config.n_layer;
}

}  // namespace reprise::cli

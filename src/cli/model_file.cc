#include "cli/model_file.h"

#include <filesystem>

#include "base/try.h"
#include "engine/model_path.h"

namespace reprise::cli {

Result<ModelFile> ModelFile::open(const std::string& model) {
  ModelFile file;
  REPRISE_TRY(file.path_, resolve_model(model));
  std::error_code ignored;
  if (std::filesystem::is_directory(file.path_, ignored)) {
    REPRISE_TRY(SafetensorsFolder folder, SafetensorsFolder::open(file.path_));
    file.folder_ = std::make_unique<SafetensorsFolder>(std::move(folder));
  } else {
    REPRISE_TRY(GgufFile gguf, GgufFile::open(file.path_));
    file.gguf_ = std::make_unique<GgufFile>(std::move(gguf));
  }
  return file;
}

std::string ModelFile::format() const {
  return gguf_ != nullptr ? fmt::format("GGUF v{}", gguf_->version()) : "safetensors";
}

const std::vector<TensorView>& ModelFile::tensors() const {
  return gguf_ != nullptr ? gguf_->tensors() : folder_->tensors();
}

uint64_t ModelFile::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const TensorView& tensor : tensors()) bytes += tensor.bytes.size();
  return bytes;
}

Result<ModelConfig> ModelFile::config() const {
  return gguf_ != nullptr ? read_gguf_config(*gguf_) : read_folder_config(*folder_);
}

Result<TokenizerData> ModelFile::tokenizer() const {
  return gguf_ != nullptr ? read_gguf_tokenizer(*gguf_) : read_folder_tokenizer(path_);
}

uint64_t kv_bytes_per_token(const ModelConfig& config, kernels::KvType type) {
  const kernels::KvLayout layout{type, config.n_kv_head, config.head_dim};
  return layout.page_bytes() / kernels::kPageTokens * config.n_layer;
}

}  // namespace reprise::cli

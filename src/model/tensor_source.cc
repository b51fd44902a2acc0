#include "model/tensor_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "base/try.h"

namespace reprise {
namespace {

// The root whose embedding the folder holds; that of a text model alone where none is there.
const TextRoot& root_of(const SafetensorsFolder& folder) {
  const auto found = std::ranges::find_if(text_roots(), [&](const TextRoot& root) {
    return folder.tensor(std::string(root.embedding) + ".weight") != nullptr;
  });
  return found != text_roots().end() ? *found : text_roots().front();
}

// True when part lies inside whole.
bool contains(std::span<const std::byte> whole, std::span<const std::byte> part) {
  const std::less_equal<const std::byte*> not_after;
  return not_after(whole.data(), part.data()) &&
         not_after(part.data() + part.size(), whole.data() + whole.size());
}

}  // namespace

Result<TensorSource> TensorSource::open(const std::string& path) {
  if (path.starts_with(kRandomPrefix)) {
    REPRISE_TRY(RandomModel model, RandomModel::make(path));
    return TensorSource(path, std::move(model));
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    REPRISE_TRY(SafetensorsFolder folder, SafetensorsFolder::open(path));
    TensorSource source(path, std::move(folder));
    source.keep_text();
    return source;
  }
  REPRISE_TRY(GgufFile file, GgufFile::open(path));
  return TensorSource(path, std::move(file));
}

std::string TensorSource::format() const {
  if (const auto* gguf = std::get_if<GgufFile>(&file_))
    return fmt::format("GGUF v{}", gguf->version());
  return std::holds_alternative<RandomModel>(file_) ? "random" : "safetensors";
}

Result<ModelConfig> TensorSource::config() const {
  if (const auto* gguf = std::get_if<GgufFile>(&file_)) return read_gguf_config(*gguf);
  if (const auto* random = std::get_if<RandomModel>(&file_)) return random->config();
  REPRISE_TRY(ModelConfig config, read_folder_config(std::get<SafetensorsFolder>(file_)));
  // Versions differ in which of two configurations says so, and neither is always right.
  if (root_ != &text_roots().front() && find(std::string(root_->lm_head) + ".weight") == nullptr) {
    config.tied_embeddings = true;
  }
  return config;
}

TensorNames TensorSource::names(const ModelConfig& config) const {
  return std::holds_alternative<GgufFile>(file_) ? gguf_names() : folder_names(config, *root_);
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

void TensorSource::keep_text() {
  root_ = &root_of(std::get<SafetensorsFolder>(file_));
  if (root_ == &text_roots().front()) return;
  for (const TensorView& tensor : all()) {
    const std::string_view name = tensor.name;
    if (name.starts_with(root_->prefix) || name.starts_with(root_->lm_head))
      text_.push_back(tensor);
  }
}

const std::vector<TensorView>& TensorSource::tensors() const {
  return text_.empty() ? all() : text_;
}

size_t TensorSource::others() const { return all().size() - tensors().size(); }

const std::vector<TensorView>& TensorSource::all() const {
  return std::visit(
      [](const auto& file) -> const auto& { return file.tensors(); }, file_);
}

void TensorSource::release(const TensorView& tensor) const {
  if (const auto* gguf = std::get_if<GgufFile>(&file_)) return gguf->file().release(tensor.bytes);
  const auto* folder = std::get_if<SafetensorsFolder>(&file_);
  if (folder == nullptr) return;
  for (const MappedFile& file : folder->files()) {
    if (contains(file.bytes(), tensor.bytes)) file.release(tensor.bytes);
  }
}

}  // namespace reprise

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/try.h"
#include "formats/printable.h"
#include "formats/safetensors.h"

namespace reprise {
namespace {

using Json = nlohmann::json;
using WeightMap = std::map<std::string, std::string>;  // tensor -> file name

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// A shard must lie in the folder itself: the name may not lead anywhere else.
bool is_plain_name(std::string_view name) {
  constexpr std::string_view kForbidden("/\\\0", 3);
  return !name.empty() && name.front() != '.' && name.find_first_of(kForbidden) == name.npos &&
         name.ends_with(".safetensors");
}

// Folders are often named for a GGUF file that lies in them.
std::string gguf_in(const std::string& folder) {
  std::error_code failed;
  std::filesystem::directory_iterator entry(folder, failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    const std::filesystem::path& path = entry->path();
    if (path.extension() == ".gguf") return fmt::format("; name the file, as in {}", path.string());
  }
  return "";
}

Result<WeightMap> read_index(const std::string& path) {
  REPRISE_TRY(const std::string text, read_text_file(path));
  REPRISE_TRY(const Json index, parse_json(text, path));
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (found == index.end() || !found->is_object()) {
    return fail(ErrorCode::kBadJson, "{}: there is no object weight_map", path);
  }
  WeightMap weights;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      return fail(ErrorCode::kBadValue, "{}: tensor {} lies in {}, not a .safetensors file name",
                  path, printable(tensor), printable(file.dump(-1, ' ', true)));
    }
    weights.emplace(tensor, file.get_ref<const std::string&>());
  }
  if (weights.empty()) return fail(ErrorCode::kBadJson, "{}: weight_map is empty", path);
  return weights;
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, size_t max_bytes) {
  REPRISE_TRY(const auto file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > max_bytes) {
    return fail(ErrorCode::kBadCount, "{}: {} bytes; at most {} are read", path, bytes.size(),
                max_bytes);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<SafetensorsFolder> SafetensorsFolder::open(const std::string& folder) {
  SafetensorsFolder model;
  model.path_ = folder;
  const std::string config = folder + "/config.json";
  const auto text = read_text_file(config);
  if (!text && text.error().code == ErrorCode::kFileNotFound) {
    return fail(ErrorCode::kFileNotFound,
                "{}: no model is in this folder: config.json is missing{}", folder,
                gguf_in(folder));
  }
  if (!text) return tl::unexpected(text.error());
  REPRISE_TRY(model.config_, parse_json(*text, config));
  if (!model.config_.is_object()) {
    return fail(ErrorCode::kBadJson, "{}: not a JSON object", config);
  }
  const std::string single = folder + "/model.safetensors";
  const std::string index = folder + "/model.safetensors.index.json";
  if (!exists(single) && !exists(index)) {
    return fail(ErrorCode::kFileNotFound,
                "{}: neither model.safetensors nor its index.json is here", folder);
  }
  WeightMap weights;
  if (!exists(single)) {
    REPRISE_TRY(weights, read_index(index));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : weights) names.insert(file);
  if (names.empty()) names.insert("model.safetensors");

  std::map<std::string, std::string, std::less<>> found_in;
  for (const std::string& name : names) {
    REPRISE_CHECK(model.add_file((std::filesystem::path(folder) / name).string()));
    while (found_in.size() < model.tensors_.size()) {
      found_in.emplace(model.tensors_[found_in.size()].name, name);
    }
  }
  for (const auto& [tensor, file] : weights) {
    const auto found = found_in.find(tensor);
    if (found == found_in.end() || found->second != file) {
      return fail(ErrorCode::kMissingTensor, "{}: tensor {} is not in {}", index, printable(tensor),
                  printable(file));
    }
  }
  return model;
}

Status SafetensorsFolder::add_file(const std::string& path) {
  REPRISE_TRY(auto file, MappedFile::open(path));
  REPRISE_TRY(auto tensors, parse_safetensors(file.bytes(), path));
  for (TensorView& tensor : tensors) {
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return fail(ErrorCode::kDuplicateKey, "{}: tensor {} is in another file too", path,
                  printable(tensor.name));
    }
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(file));
  return {};
}

const TensorView* SafetensorsFolder::tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace reprise

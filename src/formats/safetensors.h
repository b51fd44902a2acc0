// A Hugging Face model folder: config.json plus one or more safetensors files, memory-mapped.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/tensor_type.h"
#include "reprise/error.h"

namespace reprise {

/// Tensors of one safetensors file. Errors: kTruncated, kBadCount, kBadJson, kTooDeep, kBadString,
/// kBadType, kUnsupportedType, kBadShape, kBadOffset, kSizeOverflow, kDuplicateKey.
Result<std::vector<TensorView>> parse_safetensors(std::span<const std::byte> bytes,
                                                  std::string_view name);

class SafetensorsFolder {
 public:
  /// Reads config.json and either model.safetensors or the shards that
  /// model.safetensors.index.json names (each a plain file name inside the folder).
  /// Errors: those of MappedFile::open, parse_json and parse_safetensors, and kBadValue for a shard
  /// name, kMissingTensor, kDuplicateKey.
  static Result<SafetensorsFolder> open(const std::string& folder);

  const nlohmann::json& config() const { return config_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const TensorView* tensor(std::string_view name) const;
  const std::string& path() const { return path_; }
  const std::vector<MappedFile>& files() const { return files_; }

 private:
  Status add_file(const std::string& path);

  std::string path_;
  nlohmann::json config_;
  std::vector<MappedFile> files_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

/// Parses JSON text with a depth limit (kTooDeep) and UTF-8 check; kBadJson names the byte.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view name,
                                  int max_depth = 128);

/// Reads a whole small file; kBadCount when it is longer than max_bytes.
Result<std::string> read_text_file(const std::string& path, size_t max_bytes = size_t{1} << 28);

}  // namespace reprise

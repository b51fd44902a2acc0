// GGUF v2 and v3: metadata and tensor directory of a memory-mapped model file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "base/tensor_type.h"
#include "reprise/error.h"

namespace reprise {

/// One metadata value. Numbers are widened to the largest type of their kind; strings and arrays of
/// strings are views into the mapped file, valid as long as the GgufFile lives.
using GgufValue = std::variant<bool, uint64_t, int64_t, double, std::string_view, std::vector<bool>,
                               std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string_view>>;

class GgufFile {
 public:
  /// Errors: those of MappedFile::open, and kBadMagic, kUnsupportedVersion, kTruncated, kBadCount,
  /// kBadString, kBadType, kUnsupportedType, kBadValue, kBadShape, kBadOffset, kSizeOverflow,
  /// kDuplicateKey, kTooDeep. Allocates at most a small multiple of the file's length.
  static Result<GgufFile> open(const std::string& path);
  /// The same over bytes that the caller keeps alive (tests, fuzzing); name is used in messages.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  const GgufValue* find(std::string_view key) const;
  /// Typed access: kMissingKey when absent, kBadType when the value is of another kind (a signed
  /// integer that is not negative counts as unsigned).
  Result<uint64_t> get_uint(std::string_view key) const;
  Result<double> get_float(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const TensorView* tensor(std::string_view name) const;
  uint32_t version() const { return version_; }
  const MappedFile& file() const { return file_; }
  const std::string& name() const { return name_; }

 private:
  Result<const GgufValue*> require(std::string_view key) const;

  MappedFile file_;
  std::string name_;
  uint32_t version_ = 0;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

}  // namespace reprise

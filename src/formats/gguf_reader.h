// Sequential, bounds-checked reading of a GGUF header; the parts that gguf.cc puts together.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/tensor_type.h"
#include "formats/gguf.h"
#include "reprise/error.h"

namespace reprise::gguf {

/// A position in the file's bytes. Every read is checked against what is left.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }
  const std::string& file() const { return file_; }

  /// A little-endian number; what says what it is. kTruncated.
  template <class T>
  requires std::integral<T> || std::floating_point<T> Result<T> number(std::string_view what) {
    if (left() < sizeof(T)) return ends_in(what);
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  /// A length-prefixed UTF-8 string as a view of the file. kTruncated, kBadCount, kBadString.
  Result<std::string_view> string(std::string_view what);

 private:
  tl::unexpected<Error> ends_in(std::string_view what) const;

  std::span<const std::byte> bytes_;
  const std::string& file_;
  uint64_t position_ = 0;
};

/// A value and its type tag. kBadType, kBadValue, kTooDeep, and the errors of Cursor.
Result<GgufValue> read_value(Cursor& cursor, std::string_view key);

/// A tensor's entry in the directory. `bytes` of the view is empty; the tensor's data is at
/// [offset, offset + size) of the data section. kBadCount, kBadShape, kSizeOverflow,
/// kUnsupportedType, and the errors of Cursor.
struct TensorEntry {
  TensorView view;
  uint64_t offset = 0;
  uint64_t size = 0;
};
Result<TensorEntry> read_tensor(Cursor& cursor);

}  // namespace reprise::gguf

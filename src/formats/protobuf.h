// Reads the protobuf wire format, field by field, without a schema compiler.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "reprise/error.h"

namespace reprise {

/// One field of a message. Exactly one of number and bytes is meaningful, by wire type.
struct ProtobufField {
  enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  uint32_t id = 0;
  Wire wire = Wire::kVarint;
  uint64_t number = 0;     ///< varint, fixed64 or fixed32 bits
  std::string_view bytes;  ///< a string or an embedded message, a view of the input
};

class ProtobufReader {
 public:
  ProtobufReader(std::string_view bytes, std::string_view file) : rest_(bytes), file_(file) {}

  /// The next field; empty at the end. kTruncated, kBadCount (a length past the end), kBadType (a
  /// wire type that is reserved or a group), kBadValue (field 0 or an overlong varint).
  Result<std::optional<ProtobufField>> next();

 private:
  Result<uint64_t> varint();
  Result<uint64_t> fixed(size_t bytes);

  std::string_view rest_;
  std::string_view file_;
};

}  // namespace reprise

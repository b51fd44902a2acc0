#include "formats/protobuf.h"

#include "base/try.h"

namespace reprise {

Result<uint64_t> ProtobufReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) return fail(ErrorCode::kTruncated, "{}: ends inside a number", file_);
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    if (shift == 63 && byte > 1) break;
    value |= static_cast<uint64_t>(byte & 0x7fu) << shift;
    if (byte < 0x80) return value;
  }
  return fail(ErrorCode::kBadValue, "{}: a number has more than 64 bits", file_);
}

Result<uint64_t> ProtobufReader::fixed(size_t bytes) {
  if (rest_.size() < bytes) return fail(ErrorCode::kTruncated, "{}: ends inside a number", file_);
  uint64_t value = 0;
  for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(rest_[i]);
  rest_.remove_prefix(bytes);
  return value;
}

Result<std::optional<ProtobufField>> ProtobufReader::next() {
  using Wire = ProtobufField::Wire;
  if (rest_.empty()) return std::optional<ProtobufField>();
  REPRISE_TRY(const uint64_t tag, varint());
  ProtobufField field;
  field.wire = static_cast<Wire>(tag & 7u);
  if (tag >> 3 == 0 || tag >> 32 != 0) {
    return fail(ErrorCode::kBadValue, "{}: field number {} is not allowed", file_, tag >> 3);
  }
  field.id = static_cast<uint32_t>(tag >> 3);
  switch (field.wire) {
    case Wire::kVarint: {
      REPRISE_TRY(field.number, varint());
      return field;
    }
    case Wire::kFixed64: {
      REPRISE_TRY(field.number, fixed(8));
      return field;
    }
    case Wire::kFixed32: {
      REPRISE_TRY(field.number, fixed(4));
      return field;
    }
    case Wire::kBytes: {
      REPRISE_TRY(const uint64_t length, varint());
      if (length > rest_.size()) {
        return fail(ErrorCode::kBadCount, "{}: field {} claims {} bytes, but {} are left", file_,
                    field.id, length, rest_.size());
      }
      field.bytes = rest_.substr(0, length);
      rest_.remove_prefix(length);
      return field;
    }
  }
  return fail(ErrorCode::kBadType, "{}: field {} has wire type {}, which is not read", file_,
              field.id, tag & 7u);
}

}  // namespace reprise

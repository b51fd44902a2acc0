#include <array>
#include <type_traits>

#include "base/checked.h"
#include "base/try.h"
#include "formats/gguf_reader.h"
#include "formats/printable.h"

namespace reprise::gguf {
namespace {

enum Tag : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kTagCount
};

// Bytes of one element; for strings the least that one can take.
constexpr std::array<uint64_t, kTagCount> kMinBytes{1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};

Result<bool> read_bool(Cursor& cursor, std::string_view key) {
  REPRISE_TRY(const auto byte, cursor.number<uint8_t>(key));
  if (byte > 1) {
    return fail(ErrorCode::kBadValue, "{}: boolean of key {} is {}; 0 or 1 is allowed",
                cursor.file(), printable(key), byte);
  }
  return byte == 1;
}

// Calls visit(read) with the function that reads one widened element of the tag's type.
template <class Visit>
auto with_reader(Tag tag, Visit visit) {
  const auto number = [&]<class Stored, class Wide>(Stored, Wide) {
    return visit([](Cursor& cursor, std::string_view key) {
      return cursor.number<Stored>(key).map([](Stored v) { return static_cast<Wide>(v); });
    });
  };
  switch (tag) {
    case kUint8:
      return number(uint8_t{}, uint64_t{});
    case kUint16:
      return number(uint16_t{}, uint64_t{});
    case kUint32:
      return number(uint32_t{}, uint64_t{});
    case kUint64:
      return number(uint64_t{}, uint64_t{});
    case kInt8:
      return number(int8_t{}, int64_t{});
    case kInt16:
      return number(int16_t{}, int64_t{});
    case kInt32:
      return number(int32_t{}, int64_t{});
    case kInt64:
      return number(int64_t{}, int64_t{});
    case kFloat32:
      return number(float{}, double{});
    case kFloat64:
      return number(double{}, double{});
    case kBool:
      return visit(read_bool);
    default:
      return visit([](Cursor& cursor, std::string_view key) { return cursor.string(key); });
  }
}

Result<Tag> read_tag(Cursor& cursor, std::string_view key) {
  REPRISE_TRY(const auto tag, cursor.number<uint32_t>(key));
  if (tag >= kTagCount) {
    return fail(ErrorCode::kBadType, "{}: key {} has type {}, which GGUF does not define",
                cursor.file(), printable(key), tag);
  }
  return static_cast<Tag>(tag);
}

Result<GgufValue> read_array(Cursor& cursor, std::string_view key) {
  REPRISE_TRY(const Tag tag, read_tag(cursor, key));
  if (tag == kArray) {
    return fail(ErrorCode::kTooDeep, "{}: key {} is an array of arrays; only flat arrays are read",
                cursor.file(), printable(key));
  }
  REPRISE_TRY(const auto count, cursor.number<uint64_t>(key));
  if (!(CheckedSize(count) * kMinBytes[tag]).fits(cursor.left())) {
    return fail(
        ErrorCode::kBadCount,
        "{}: array of key {} claims {} elements, but {} bytes are left (damaged or cut file)",
        cursor.file(), printable(key), count, cursor.left());
  }
  return with_reader(tag, [&](auto read) -> Result<GgufValue> {
    using Element = typename decltype(read(cursor, key))::value_type;
    std::vector<Element> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      REPRISE_TRY(const Element value, read(cursor, key));
      values.push_back(value);
    }
    return GgufValue(std::move(values));
  });
}

}  // namespace

tl::unexpected<Error> Cursor::ends_in(std::string_view what) const {
  return fail(ErrorCode::kTruncated,
              "{}: the file ends inside {} at byte {} (incomplete download?)", file_,
              printable(what), bytes_.size());
}

Result<std::string_view> Cursor::string(std::string_view what) {
  REPRISE_TRY(const auto length, number<uint64_t>(what));
  if (length > left()) {
    return fail(ErrorCode::kBadCount,
                "{}: a string of {} claims {} bytes, but {} are left (damaged or cut file)", file_,
                printable(what), length, left());
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + position_, length);
  if (!is_utf8(text)) {
    return fail(ErrorCode::kBadString, "{}: a string of {} is not valid UTF-8 at byte {}", file_,
                printable(what), position_);
  }
  position_ += length;
  return text;
}

Result<GgufValue> read_value(Cursor& cursor, std::string_view key) {
  REPRISE_TRY(const Tag tag, read_tag(cursor, key));
  if (tag == kArray) return read_array(cursor, key);
  return with_reader(tag, [&](auto read) -> Result<GgufValue> {
    REPRISE_TRY(const auto value, read(cursor, key));
    return GgufValue(value);
  });
}

}  // namespace reprise::gguf

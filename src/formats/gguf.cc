#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "formats/gguf_reader.h"
#include "formats/printable.h"

namespace reprise {
namespace {

using gguf::Cursor;
using gguf::TensorEntry;

constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8, kMaxAlignment = 1 << 20;
constexpr size_t kMaxKeyBytes = 65535;
constexpr uint64_t kMinPairBytes = 8 + 1 + 4 + 1;            // length, key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // length, name, dims, type, offset

struct Header {
  uint32_t version = 0;
  uint64_t tensors = 0, pairs = 0;
};

Result<Header> read_header(Cursor& cursor) {
  REPRISE_TRY(const auto magic, cursor.number<uint32_t>("the magic"));
  if (magic != 0x46554747u) {  // "GGUF"
    return fail(ErrorCode::kBadMagic, "{}: not a GGUF file (it does not start with 'GGUF')",
                cursor.file());
  }
  Header header;
  REPRISE_TRY(header.version, cursor.number<uint32_t>("the version"));
  if (header.version != 2 && header.version != 3) {
    const bool swapped = (header.version & 0xffffu) == 0 && header.version != 0;
    return fail(ErrorCode::kUnsupportedVersion, "{}: GGUF version {}{}; versions 2 and 3 are read",
                cursor.file(), swapped ? __builtin_bswap32(header.version) : header.version,
                swapped ? " in big-endian byte order" : "");
  }
  REPRISE_TRY(header.tensors, cursor.number<uint64_t>("the tensor count"));
  REPRISE_TRY(header.pairs, cursor.number<uint64_t>("the metadata count"));
  const CheckedSize least =
      CheckedSize(header.tensors) * kMinTensorBytes + CheckedSize(header.pairs) * kMinPairBytes;
  if (!least.fits(cursor.left())) {
    return fail(ErrorCode::kBadCount,
                "{}: {} tensors and {} metadata pairs cannot fit in the {} bytes that are left",
                cursor.file(), header.tensors, header.pairs, cursor.left());
  }
  return header;
}

using Metadata = std::map<std::string, GgufValue, std::less<>>;

Result<Metadata> read_metadata(Cursor& cursor, uint64_t count) {
  Metadata metadata;
  for (uint64_t i = 0; i < count; ++i) {
    REPRISE_TRY(const auto key, cursor.string("a metadata key"));
    if (key.size() > kMaxKeyBytes) {
      return fail(ErrorCode::kBadCount, "{}: metadata key {} has {} bytes; at most {} are allowed",
                  cursor.file(), printable(key), key.size(), kMaxKeyBytes);
    }
    if (key.empty() || key.find('\0') != key.npos) {
      return fail(ErrorCode::kBadString, "{}: metadata key {} is empty or holds NUL", cursor.file(),
                  printable(key));
    }
    REPRISE_TRY(auto value, gguf::read_value(cursor, key));
    if (!metadata.emplace(key, std::move(value)).second) {
      return fail(ErrorCode::kDuplicateKey, "{}: metadata key {} appears twice", cursor.file(),
                  printable(key));
    }
  }
  return metadata;
}

Result<uint64_t> read_alignment(const Cursor& cursor, const Metadata& metadata) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<uint64_t>(&found->second);
  if (value == nullptr) {
    return fail(ErrorCode::kBadType, "{}: general.alignment is not an unsigned integer",
                cursor.file());
  }
  if (!std::has_single_bit(*value) || *value < kMinAlignment || *value > kMaxAlignment) {
    return fail(ErrorCode::kBadValue,
                "{}: general.alignment is {}; a power of 2 from {} to {} is allowed", cursor.file(),
                *value, kMinAlignment, kMaxAlignment);
  }
  return *value;
}

// Points every entry's view at its bytes inside the data section.
Status place_tensors(std::span<const std::byte> bytes, uint64_t data_begin, uint64_t alignment,
                     const std::string& file, std::vector<TensorEntry>& entries) {
  std::vector<std::pair<uint64_t, const TensorEntry*>> by_offset;
  by_offset.reserve(entries.size());
  for (TensorEntry& entry : entries) {
    const std::string& name = entry.view.name;
    if (entry.offset % alignment != 0) {
      return fail(ErrorCode::kBadOffset, "{}: tensor {} is at offset {}, not a multiple of {}",
                  file, printable(name), entry.offset, alignment);
    }
    const CheckedSize begin = CheckedSize(data_begin) + entry.offset;
    const CheckedSize end = begin + entry.size;
    if (!end.valid()) {
      return fail(ErrorCode::kSizeOverflow, "{}: the end of tensor {} overflows 64 bits", file,
                  printable(name));
    }
    if (!end.fits(bytes.size())) {
      return fail(ErrorCode::kTruncated,
                  "{}: tensor {} ends at byte {}, but the file has {} (incomplete download?)", file,
                  printable(name), *end.value(), bytes.size());
    }
    entry.view.bytes = bytes.subspan(*begin.value(), entry.size);
    by_offset.emplace_back(entry.offset, &entry);
  }
  std::ranges::sort(by_offset);
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const TensorEntry& before = *by_offset[i - 1].second;
    if (!(CheckedSize(before.offset) + before.size).fits(by_offset[i].first)) {
      return fail(ErrorCode::kBadOffset, "{}: tensors {} and {} overlap", file,
                  printable(before.view.name), printable(by_offset[i].second->view.name));
    }
  }
  return {};
}

template <class T>
Result<T> wrong_kind(const GgufFile& file, std::string_view key, std::string_view wanted) {
  return fail(ErrorCode::kBadType, "{}: metadata key {} is not {}", file.name(), printable(key),
              wanted);
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::string& path) {
  REPRISE_TRY(auto mapped, MappedFile::open(path));
  REPRISE_TRY(auto file, parse(mapped.bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.name_ = std::move(name);
  Cursor cursor(bytes, file.name_);
  REPRISE_TRY(const Header header, read_header(cursor));
  file.version_ = header.version;
  REPRISE_TRY(file.metadata_, read_metadata(cursor, header.pairs));
  REPRISE_TRY(const uint64_t alignment, read_alignment(cursor, file.metadata_));
  std::vector<TensorEntry> entries;
  entries.reserve(header.tensors);
  for (uint64_t i = 0; i < header.tensors; ++i) {
    REPRISE_TRY(auto entry, gguf::read_tensor(cursor));
    if (!file.tensor_index_.emplace(entry.view.name, i).second) {
      return fail(ErrorCode::kDuplicateKey, "{}: tensor {} appears twice", file.name_,
                  printable(entry.view.name));
    }
    entries.push_back(std::move(entry));
  }
  const auto data_begin = CheckedSize(cursor.position()).align_up(alignment).value();
  if (!data_begin) {
    return fail(ErrorCode::kSizeOverflow, "{}: the start of the tensor data overflows", file.name_);
  }
  REPRISE_CHECK(place_tensors(bytes, *data_begin, alignment, file.name_, entries));
  file.tensors_.reserve(entries.size());
  for (TensorEntry& entry : entries) file.tensors_.push_back(std::move(entry.view));
  return file;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

const TensorView* GgufFile::tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Result<const GgufValue*> GgufFile::require(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) {
    return fail(ErrorCode::kMissingKey, "{}: metadata key {} is missing", name_, printable(key));
  }
  return value;
}

Result<uint64_t> GgufFile::get_uint(std::string_view key) const {
  REPRISE_TRY(const GgufValue* value, require(key));
  if (const auto* number = std::get_if<uint64_t>(value)) return *number;
  if (const auto* number = std::get_if<int64_t>(value); number != nullptr && *number >= 0) {
    return static_cast<uint64_t>(*number);
  }
  return wrong_kind<uint64_t>(*this, key, "an unsigned integer");
}

Result<double> GgufFile::get_float(std::string_view key) const {
  REPRISE_TRY(const GgufValue* value, require(key));
  if (const auto* number = std::get_if<double>(value)) return *number;
  return wrong_kind<double>(*this, key, "a floating-point number");
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  REPRISE_TRY(const GgufValue* value, require(key));
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  return wrong_kind<bool>(*this, key, "a boolean");
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  REPRISE_TRY(const GgufValue* value, require(key));
  if (const auto* text = std::get_if<std::string_view>(value)) return *text;
  return wrong_kind<std::string_view>(*this, key, "a string");
}

}  // namespace reprise

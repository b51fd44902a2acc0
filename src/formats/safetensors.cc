#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "formats/json_text.h"
#include "formats/printable.h"

namespace reprise {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxDims = 8;
constexpr int kMaxDepth = 4;  // file > tensor > field is 3

struct Dtype {
  std::string_view name;
  std::optional<TensorType> type;  // empty: defined by the format, not read by this engine
};

constexpr std::array<Dtype, 15> kDtypes{{
    {"F32", TensorType::kF32},
    {"F16", TensorType::kF16},
    {"BF16", TensorType::kBF16},
    {"F64", {}},
    {"F8_E4M3", {}},
    {"F8_E5M2", {}},
    {"I64", {}},
    {"I32", {}},
    {"I16", {}},
    {"I8", {}},
    {"U64", {}},
    {"U32", {}},
    {"U16", {}},
    {"U8", {}},
    {"BOOL", {}},
}};

struct Place {
  uint64_t begin = 0, end = 0, size = 0;  // inside the data section
};

// A tensor's field of the header, checked to be there.
Result<const Json*> field(const Json& entry, std::string_view key, std::string_view tensor,
                          std::string_view file) {
  if (entry.is_object()) {
    if (const auto found = entry.find(key); found != entry.end()) return &*found;
  }
  return fail(ErrorCode::kBadJson, "{}: tensor {} has no {}", file, printable(tensor), key);
}

Result<TensorType> read_type(const Json& entry, std::string_view tensor, std::string_view file) {
  REPRISE_TRY(const Json* dtype, field(entry, "dtype", tensor, file));
  if (!dtype->is_string()) {
    return fail(ErrorCode::kBadType, "{}: dtype of tensor {} is not a string", file,
                printable(tensor));
  }
  const auto& name = dtype->get_ref<const std::string&>();
  const auto known = std::ranges::find(kDtypes, name, &Dtype::name);
  if (known == kDtypes.end()) {
    return fail(ErrorCode::kBadType, "{}: dtype {} of tensor {} is not one of safetensors", file,
                printable(name), printable(tensor));
  }
  if (!known->type) {
    return fail(ErrorCode::kUnsupportedType,
                "{}: tensor {} has dtype {}, which is not read; F32, F16 and BF16 are", file,
                printable(tensor), name);
  }
  return *known->type;
}

Result<std::vector<uint64_t>> read_shape(const Json& entry, std::string_view tensor,
                                         std::string_view file) {
  REPRISE_TRY(const Json* dims, field(entry, "shape", tensor, file));
  if (!dims->is_array() || dims->size() > kMaxDims) {
    return fail(ErrorCode::kBadShape, "{}: shape of tensor {} is not a list of at most {} sizes",
                file, printable(tensor), kMaxDims);
  }
  std::vector<uint64_t> shape;
  for (const Json& dim : *dims) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() == 0) {
      return fail(ErrorCode::kBadShape, "{}: shape of tensor {} holds what is no positive integer",
                  file, printable(tensor));
    }
    shape.push_back(dim.get<uint64_t>());
  }
  return shape;
}

Result<Place> read_place(const Json& entry, std::string_view tensor, std::string_view file) {
  REPRISE_TRY(const Json* offsets, field(entry, "data_offsets", tensor, file));
  if (!offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    return fail(ErrorCode::kBadOffset, "{}: data_offsets of tensor {} are not two byte offsets",
                file, printable(tensor));
  }
  const uint64_t begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  const auto size = (CheckedSize(end) - begin).value();
  if (!size) {
    return fail(ErrorCode::kBadOffset, "{}: tensor {} begins at {}, after its end at {}", file,
                printable(tensor), begin, end);
  }
  return Place{begin, end, *size};
}

struct Layout {
  std::string_view file;
  std::span<const std::byte> data;
  uint64_t data_begin;  // in the file
};

Result<TensorView> read_tensor(const std::string& name, const Json& entry, const Layout& layout) {
  const std::string_view file = layout.file;
  if (name.empty() || name.find('\0') != name.npos) {
    return fail(ErrorCode::kBadString, "{}: tensor name {} is empty or holds NUL", file,
                printable(name));
  }
  TensorView view;
  view.name = name;
  REPRISE_TRY(view.type, read_type(entry, name, file));
  REPRISE_TRY(view.shape, read_shape(entry, name, file));
  REPRISE_TRY(const Place place, read_place(entry, name, file));
  const uint64_t element = tensor_type_info(view.type).block_bytes;
  CheckedSize size(element);
  for (const uint64_t dim : view.shape) size = size * dim;
  if (!size.valid()) {
    return fail(ErrorCode::kSizeOverflow, "{}: the size of tensor {} overflows 64 bits", file,
                printable(name));
  }
  if (*size.value() != place.size) {
    return fail(ErrorCode::kBadShape, "{}: tensor {} has {} bytes, but its shape needs {}", file,
                printable(name), place.size, *size.value());
  }
  if (place.end > layout.data.size()) {
    return fail(ErrorCode::kTruncated,
                "{}: tensor {} ends at data byte {}, but there are {} (incomplete download?)", file,
                printable(name), place.end, layout.data.size());
  }
  if (*(CheckedSize(layout.data_begin) + place.begin).value() % element != 0) {
    return fail(ErrorCode::kBadOffset, "{}: tensor {} is not aligned to {} bytes; save it again",
                file, printable(name), element);
  }
  view.bytes = layout.data.subspan(place.begin, place.size);
  return view;
}

// The format allows neither overlaps nor bytes that belong to no tensor.
Status check_cover(const std::vector<TensorView>& tensors, const Layout& layout) {
  std::vector<std::pair<const std::byte*, const TensorView*>> by_offset;
  by_offset.reserve(tensors.size());
  for (const TensorView& view : tensors) by_offset.emplace_back(view.bytes.data(), &view);
  std::ranges::sort(by_offset);
  const std::byte* next = layout.data.data();
  for (const auto& [begin, view] : by_offset) {
    if (begin != next) {
      return fail(ErrorCode::kBadOffset, "{}: tensor {} {} the one before it", layout.file,
                  printable(view->name), begin < next ? "overlaps" : "leaves a hole after");
    }
    next = begin + view->bytes.size();
  }
  if (next != layout.data.data() + layout.data.size()) {
    return fail(ErrorCode::kBadOffset, "{}: bytes after the last tensor belong to none",
                layout.file);
  }
  return {};
}

Status check_metadata(const Json& metadata, std::string_view file) {
  const auto is_text = [](const Json& value) { return value.is_string(); };
  if (metadata.is_object() && std::ranges::all_of(metadata, is_text)) return {};
  return fail(ErrorCode::kBadType, "{}: __metadata__ is not an object of strings", file);
}

}  // namespace

Result<std::vector<TensorView>> parse_safetensors(std::span<const std::byte> bytes,
                                                  std::string_view name) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) {
    return fail(ErrorCode::kTruncated, "{}: {} bytes are no safetensors file", name, bytes.size());
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const auto rest = bytes.subspan(sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes) {
    return fail(ErrorCode::kBadCount,
                "{}: not a safetensors file: a header of {} bytes; at most {} are allowed", name,
                header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > rest.size()) {
    return fail(ErrorCode::kTruncated, "{}: the header claims {} bytes, but {} are left", name,
                header_bytes, rest.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), header_bytes);
  if (!text.starts_with('{')) {
    return fail(ErrorCode::kBadJson, "{}: the header is not a JSON object", name);
  }
  REPRISE_TRY(const Json header,
              parse_json(text, name, JsonLimits{.max_depth = kMaxDepth, .unique_keys = true}));
  const auto data = rest.subspan(header_bytes);
  const Layout layout{name, data, bytes.size() - data.size()};
  std::vector<TensorView> tensors;
  tensors.reserve(header.size());
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      REPRISE_CHECK(check_metadata(entry, name));
      continue;
    }
    REPRISE_TRY(auto tensor, read_tensor(key, entry, layout));
    tensors.push_back(std::move(tensor));
  }
  REPRISE_CHECK(check_cover(tensors, layout));
  return tensors;
}

}  // namespace reprise

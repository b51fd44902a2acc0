#include <algorithm>
#include <array>
#include <optional>

#include "base/checked.h"
#include "base/try.h"
#include "formats/gguf_reader.h"
#include "formats/printable.h"

namespace reprise::gguf {
namespace {

constexpr uint32_t kMaxDims = 4;
constexpr size_t kMaxNameBytes = 64;

struct GgmlType {
  std::string_view name;
  std::optional<TensorType> type;  // empty: defined by ggml, not read by this engine
};

// Indexed by ggml's type number; empty names are numbers that ggml retired.
constexpr std::array<GgmlType, 40> kGgmlTypes{{
    {"F32", TensorType::kF32},
    {"F16", TensorType::kF16},
    {"Q4_0", TensorType::kQ4_0},
    {"Q4_1", TensorType::kQ4_1},
    {"", {}},
    {"", {}},
    {"Q5_0", TensorType::kQ5_0},
    {"Q5_1", TensorType::kQ5_1},
    {"Q8_0", TensorType::kQ8_0},
    {"Q8_1", {}},
    {"Q2_K", TensorType::kQ2_K},
    {"Q3_K", TensorType::kQ3_K},
    {"Q4_K", TensorType::kQ4_K},
    {"Q5_K", TensorType::kQ5_K},
    {"Q6_K", TensorType::kQ6_K},
    {"Q8_K", {}},
    {"IQ2_XXS", {}},
    {"IQ2_XS", {}},
    {"IQ3_XXS", {}},
    {"IQ1_S", {}},
    {"IQ4_NL", TensorType::kIQ4_NL},
    {"IQ3_S", {}},
    {"IQ2_S", {}},
    {"IQ4_XS", {}},
    {"I8", {}},
    {"I16", {}},
    {"I32", {}},
    {"I64", {}},
    {"F64", {}},
    {"IQ1_M", {}},
    {"BF16", TensorType::kBF16},
    {"", {}},
    {"", {}},
    {"", {}},
    {"TQ1_0", {}},
    {"TQ2_0", {}},
    {"", {}},
    {"", {}},
    {"", {}},
    {"MXFP4", {}},
}};

Result<TensorType> tensor_type(const Cursor& cursor, uint32_t number, std::string_view name) {
  const GgmlType known = number < kGgmlTypes.size() ? kGgmlTypes[number] : GgmlType{};
  if (known.type) return *known.type;
  return fail(
      ErrorCode::kUnsupportedType,
      "{}: tensor {} has type {} ({}), which is not read; convert the model to Q4_K or Q8_0",
      cursor.file(), printable(name), number, known.name.empty() ? "unknown" : known.name);
}

Result<uint64_t> tensor_size(const Cursor& cursor, const TensorView& view) {
  const TensorTypeInfo& info = tensor_type_info(view.type);
  if (view.shape.back() % info.block != 0) {
    return fail(ErrorCode::kBadShape,
                "{}: rows of tensor {} have {} elements; {} needs a multiple of {}", cursor.file(),
                printable(view.name), view.shape.back(), info.name, info.block);
  }
  CheckedSize elements(1);
  for (const uint64_t dim : view.shape) elements = elements * dim;
  const auto bytes = (elements * info.block_bytes).value();  // also bounds the element count
  if (!bytes) {
    return fail(ErrorCode::kSizeOverflow, "{}: the size of tensor {} overflows 64 bits",
                cursor.file(), printable(view.name));
  }
  return *bytes / info.block;
}

}  // namespace

Result<TensorEntry> read_tensor(Cursor& cursor) {
  TensorEntry entry;
  REPRISE_TRY(const auto name, cursor.string("a tensor name"));
  if (name.size() > kMaxNameBytes) {
    return fail(ErrorCode::kBadCount, "{}: tensor name {} has {} bytes; at most {} are allowed",
                cursor.file(), printable(name), name.size(), kMaxNameBytes);
  }
  if (name.empty() || name.find('\0') != name.npos) {
    return fail(ErrorCode::kBadString, "{}: tensor name {} is empty or holds NUL", cursor.file(),
                printable(name));
  }
  entry.view.name = name;
  REPRISE_TRY(const auto n_dims, cursor.number<uint32_t>(name));
  if (n_dims < 1 || n_dims > kMaxDims) {
    return fail(ErrorCode::kBadShape, "{}: tensor {} has {} dimensions; 1 to {} are allowed",
                cursor.file(), printable(name), n_dims, kMaxDims);
  }
  entry.view.shape.reserve(n_dims);
  for (uint32_t i = 0; i < n_dims; ++i) {
    REPRISE_TRY(const auto dim, cursor.number<uint64_t>(name));
    if (dim == 0) {
      return fail(ErrorCode::kBadShape, "{}: dimension {} of tensor {} is 0", cursor.file(), i,
                  printable(name));
    }
    entry.view.shape.push_back(dim);
  }
  std::ranges::reverse(entry.view.shape);  // the file stores the contiguous dimension first
  REPRISE_TRY(const auto type, cursor.number<uint32_t>(name));
  REPRISE_TRY(entry.view.type, tensor_type(cursor, type, name));
  REPRISE_TRY(entry.size, tensor_size(cursor, entry.view));
  REPRISE_TRY(entry.offset, cursor.number<uint64_t>(name));
  return entry;
}

}  // namespace reprise::gguf

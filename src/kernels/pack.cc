#include <algorithm>

#include "base/checked.h"
#include "base/huge_pages.h"
#include "base/try.h"
#include "kernels/matmul.h"
#include "kernels/packed_codes.h"
#include "kernels/quant_blocks.h"

namespace reprise::kernels {
namespace {

// Rows are packed in strips of so many columns: long enough to be read as streams, short enough
// that what 16 of them make stays in the L1 cache.
constexpr size_t kStripCols = 512, kStripWords = 256;

void pack_scales(const QuantFormat& format, const BlockScales& scales, std::byte* at, size_t lane) {
  store(at, lane, scales.d);
  if (format.has_min) store(at, kPanelRows + lane, scales.min);
  if (!format.super) return;
  const size_t kinds = format.has_min ? 2 : 1;
  std::byte* integers = at + 32 * kinds;
  for (size_t g = 0; g < format.groups(); ++g) {
    if (format.bits == 2) {
      const int both = scales.scale[g] | scales.min_scale[g] << 4;
      store(integers, g * kPanelRows + lane, static_cast<uint8_t>(both));
      continue;
    }
    store(integers, g * kinds * kPanelRows + lane, scales.scale[g]);
    if (format.has_min) store(integers, (g * kinds + 1) * kPanelRows + lane, scales.min_scale[g]);
  }
}

template <TensorType type>
void pack_quantized(const PackedLayout& layout, std::span<const std::byte* const> rows,
                    std::byte* panel) {
  constexpr QuantFormat kFormat = *quant_format(type);
  constexpr size_t kParts = kFormat.super ? 8 : 1, kStrip = kStripCols / kBlockCols / kParts;
  const size_t bytes = tensor_type_info(type).block_bytes;
  std::byte* scales = panel;
  std::byte* planes = panel + layout.codes_offset;
  const size_t blocks = layout.blocks / kParts;
  for (size_t begin = 0; begin < blocks; begin += kStrip) {
    const size_t end = std::min(blocks, begin + kStrip);
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      for (size_t block = begin; block < end; ++block) {
        const std::byte* from = rows[lane] + block * bytes;
        std::byte* plane = planes + block * kParts * code_bytes(kFormat);
        pack_scales(kFormat, read_scales(type, from), scales + block * scale_bytes(kFormat), lane);
#pragma GCC unroll 8
        for (size_t part = 0; part < kParts; ++part) {
          uint32_t codes[8];
          read_codes(type, from, part, codes);
          pack_codes(kFormat.bits, codes, plane + part * code_bytes(kFormat), lane);
        }
      }
    }
  }
}

// Words of rows, those below one another side by side.
template <class Word>
void pack_words(std::span<const std::byte* const> rows, size_t words, std::byte* panel) {
  for (size_t begin = 0; begin < words; begin += kStripWords) {
    const size_t end = std::min(words, begin + kStripWords);
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      for (size_t i = begin; i < end; ++i) {
        store(panel, i * kPanelRows + lane, load<Word>(rows[lane], i));
      }
    }
  }
}

// Words are pairs of columns.
void pack_bf16(std::span<const std::byte* const> rows, size_t cols, std::byte* panel) {
  pack_words<uint32_t>(rows, cols / 2, panel);
  if (cols % 2 == 0) return;
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    store(panel, cols / 2 * kPanelRows + lane, uint32_t{load<uint16_t>(rows[lane], cols - 1)});
  }
}

// panel: zero.
void pack_panel(const PackedLayout& layout, std::span<const std::byte* const> rows,
                std::byte* panel) {
  switch (layout.type) {
    case TensorType::kF32:
      return pack_words<uint32_t>(rows, layout.cols, panel);
    case TensorType::kF16:
      return pack_words<uint16_t>(rows, layout.cols, panel);
    case TensorType::kBF16:
      return pack_bf16(rows, layout.cols, panel);
    default:
      for_quantized(layout.type, [&](auto type) { pack_quantized<type>(layout, rows, panel); });
  }
}

// Rows of the concatenation of parts.
struct Source {
  TensorType type = TensorType::kF32;
  size_t rows = 0, cols = 0, row_bytes = 0;
  std::vector<const std::byte*> row;  // [rows]
};

Result<Source> concatenate(std::span<const TensorView> parts) {
  if (parts.empty()) return fail(ErrorCode::kInvalidArgument, "no tensor to pack");
  Source source;
  source.type = parts[0].type;
  const TensorTypeInfo& info = tensor_type_info(source.type);
  for (const TensorView& part : parts) {
    if (part.type != source.type) {
      return fail(ErrorCode::kUnsupportedType,
                  "tensor '{}' is {} but is stored together with '{}', which is {}", part.name,
                  tensor_type_info(part.type).name, parts[0].name, info.name);
    }
    if (part.shape.size() != 2 || part.shape[1] != parts[0].shape.back() ||
        part.shape[1] % info.block != 0 || part.shape[0] == 0 || part.shape[1] == 0) {
      return fail(ErrorCode::kBadShape, "tensor '{}' is not a matrix like '{}' of whole {} blocks",
                  part.name, parts[0].name, info.name);
    }
    source.cols = part.shape[1];
    source.row_bytes = source.cols / info.block * info.block_bytes;
    if ((CheckedSize(part.shape[0]) * source.row_bytes).value() != part.bytes.size()) {
      return fail(ErrorCode::kBadShape, "tensor '{}' has {} bytes, its shape needs another number",
                  part.name, part.bytes.size());
    }
    for (size_t row = 0; row < part.shape[0]; ++row) {
      source.row.push_back(part.bytes.data() + row * source.row_bytes);
    }
  }
  source.rows = source.row.size();
  return source;
}

Status reorder(Source& source, std::span<const uint32_t> row_order) {
  std::vector<const std::byte*> ordered;
  for (const uint32_t row : row_order) {
    if (row >= source.rows) {
      return fail(ErrorCode::kInvalidArgument, "row {} of a matrix of {} rows", row, source.rows);
    }
    ordered.push_back(source.row[row]);
  }
  source.row = std::move(ordered);
  source.rows = source.row.size();
  return {};
}

}  // namespace

Result<PackedMatrix> PackedMatrix::pack(std::span<const TensorView> parts,
                                        std::span<const uint32_t> row_order, ThreadPool& pool) {
  REPRISE_TRY(Source source, concatenate(parts));
  if (!row_order.empty()) REPRISE_CHECK(reorder(source, row_order));
  const PackedLayout layout = packed_layout(source.type, source.cols);
  const size_t panels = (source.rows + kPanelRows - 1) / kPanelRows;
  PackedMatrix matrix;
  matrix.rows_ = source.rows;
  matrix.cols_ = source.cols;
  matrix.type_ = source.type;
  matrix.bytes_ = panels * layout.panel_bytes;
  matrix.data_ = huge_page_memory(matrix.bytes_);
  if (!matrix.data_) {
    return fail(ErrorCode::kOutOfMemory, "no memory for the {} bytes of tensor '{}'", matrix.bytes_,
                parts[0].name);
  }
  const std::span<const std::byte* const> rows = source.row;
  pool.run(panels, [&](size_t index, int) {
    const size_t first = index * kPanelRows, count = std::min(kPanelRows, source.rows - first);
    pack_panel(layout, rows.subspan(first, count), matrix.data_.get() + index * layout.panel_bytes);
  });
  return matrix;
}

Result<PackedMatrix> PackedMatrix::expanded(ThreadPool& pool) const {
  if (type_ == TensorType::kF32) return *this;
  std::vector<float> values(rows_ * cols_);
  pool.run(rows_, [&](size_t row, int) { unpack_row(*this, row, values.data() + row * cols_); });
  const TensorView view = {
      "expanded weights", TensorType::kF32, {rows_, cols_}, std::as_bytes(std::span(values))};
  return pack({&view, 1}, {}, pool);
}

}  // namespace reprise::kernels

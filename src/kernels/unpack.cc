#include <algorithm>

#include "kernels/matmul.h"
#include "kernels/packed_codes.h"

namespace reprise::kernels {
namespace {

// Scales of both halves of a block.
void read_packed_scales(const QuantFormat& format, const std::byte* scales, size_t block,
                        size_t lane, GroupScale out[2]) {
  const size_t kinds = format.has_min ? 2 : 1;
  const size_t part = format.super ? block % 8 : 0;
  const std::byte* at = scales + (format.super ? block / 8 : block) * scale_bytes(format);
  BlockScales one;
  one.d = load<F16>(at, lane);
  if (format.has_min) one.min = load<F16>(at, kPanelRows + lane);
  const std::byte* integers = at + 32 * kinds;
  for (size_t half = 0; half < 2; ++half) {
    const size_t g = (part * kBlockCols + half * 16) / format.group;
    if (format.super && format.bits == 2) {
      const auto both = load<uint8_t>(integers, g * kPanelRows + lane);
      one.scale[0] = static_cast<int8_t>(both & 15);
      one.min_scale[0] = both >> 4;
    } else if (format.super) {
      const size_t index = g * kinds * kPanelRows + lane;
      one.scale[0] = load<int8_t>(integers, index);
      if (format.has_min) one.min_scale[0] = load<uint8_t>(integers, index + kPanelRows);
    }
    out[half] = group_scale(format, one, 0);
  }
}

}  // namespace

PackedLayout packed_layout(TensorType type, size_t cols) {
  PackedLayout layout{.type = type, .cols = cols, .blocks = (cols + kBlockCols - 1) / kBlockCols};
  if (const auto format = quant_format(type)) {
    const size_t units = format->super ? layout.blocks / 8 : layout.blocks;
    layout.codes_offset = (units * scale_bytes(*format) + 63) / 64 * 64;
    layout.panel_bytes = layout.codes_offset + layout.blocks * code_bytes(*format);
  } else if (type == TensorType::kF32) {
    layout.panel_bytes = cols * kPanelRows * sizeof(float);
  } else {
    layout.panel_bytes = (cols + 1) / 2 * 64;
  }
  return layout;
}

PackedBlock read_packed(const PackedLayout& layout, const std::byte* panel, size_t block,
                        size_t lane) {
  const QuantFormat format = *quant_format(layout.type);
  PackedBlock out;
  read_packed_scales(format, panel, block, lane, out.scales);
  const std::byte* plane = panel + layout.codes_offset + block * code_bytes(format);
  unpack_codes(format.bits, plane, lane, out.codes);
  return out;
}

void unpack_block(const PackedLayout& layout, const std::byte* panel, size_t block, size_t lane,
                  float out[kBlockCols]) {
  if (const auto format = quant_format(layout.type)) {
    const PackedBlock packed = read_packed(layout, panel, block, lane);
    dequantize_codes(*format, packed.codes, packed.scales, out);
    return;
  }
  const size_t begin = block * kBlockCols, count = std::min(kBlockCols, layout.cols - begin);
  std::fill(out + count, out + kBlockCols, 0.0f);
  for (size_t i = 0; i < count; ++i) {
    const size_t column = begin + i, index = column * kPanelRows + lane;
    if (layout.type == TensorType::kF32) {
      out[i] = load<float>(panel, index);
    } else if (layout.type == TensorType::kF16) {
      out[i] = to_float(load<F16>(panel, index));
    } else {
      out[i] = to_float(load<Bf16>(panel, (column / 2 * kPanelRows + lane) * 2 + column % 2));
    }
  }
}

void unpack_row(const PackedMatrix& matrix, size_t row, float* out) {
  const PackedLayout layout = packed_layout(matrix.type(), matrix.cols());
  const std::byte* panel = matrix.data() + row / kPanelRows * layout.panel_bytes;
  float values[kBlockCols];
  for (size_t block = 0; block < layout.blocks; ++block) {
    unpack_block(layout, panel, block, row % kPanelRows, values);
    const size_t begin = block * kBlockCols;
    std::copy_n(values, std::min(kBlockCols, layout.cols - begin), out + begin);
  }
}

}  // namespace reprise::kernels

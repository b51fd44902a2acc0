#include <cstring>

#include "kernels/quant_blocks.h"

namespace reprise::kernels {
GroupScale group_scale(const QuantFormat& format, const BlockScales& scales, size_t g) {
  if (!format.super) return {to_float(scales.d), to_float(scales.min)};
  return {to_float(scales.d) * static_cast<float>(scales.scale[g]),
          -(to_float(scales.min) * static_cast<float>(scales.min_scale[g]))};
}

void dequantize_codes(const QuantFormat& format, const uint32_t codes[8],
                      const GroupScale scales[2], float out[32]) {
  for (size_t i = 0; i < 32; ++i) {
    const GroupScale& s = scales[i / 16];
    uint32_t code = codes[i / 4] >> 8 * (i % 4) & 255;
    if (format.lookup) code = kIq4Values[code];
    const float value = static_cast<float>(static_cast<int32_t>(code) - format.zero());
    out[i] = format.has_min ? s.scale * value + s.min : s.scale * value;
  }
}

void dequantize_row(TensorType type, const std::byte* row, size_t cols, float* out) {
  if (type == TensorType::kF32) {
    std::memcpy(out, row, cols * sizeof(float));
    return;
  }
  if (type == TensorType::kF16 || type == TensorType::kBF16) {
    for (size_t i = 0; i < cols; ++i) {
      const uint16_t bits = blocks::half(row + 2 * i).bits;
      out[i] = type == TensorType::kF16 ? to_float(F16{bits}) : to_float(Bf16{bits});
    }
    return;
  }
  const QuantFormat format = *quant_format(type);
  const TensorTypeInfo& info = tensor_type_info(type);
  for (size_t begin = 0; begin < cols; begin += 32) {
    const std::byte* block = row + begin / info.block * info.block_bytes;
    const size_t part = begin % info.block / 32;
    const BlockScales scales = read_scales(type, block);
    const size_t group = part * 32 / format.group, next = (part * 32 + 16) / format.group;
    const GroupScale halves[2] = {group_scale(format, scales, group),
                                  group_scale(format, scales, next)};
    uint32_t codes[8];
    read_codes(type, block, part, codes);
    dequantize_codes(format, codes, halves, out + begin);
  }
}

}  // namespace reprise::kernels

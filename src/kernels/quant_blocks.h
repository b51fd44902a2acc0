// Blocks of quantised weights as files hold them. Inline: where the type is a constant, only what
// it needs is left.
#pragma once

#include <cstring>

#include "kernels/quant.h"

namespace reprise::kernels {

namespace blocks {

inline constexpr uint32_t kLow1 = kByteOnes, kLow2 = 3 * kByteOnes, kLow4 = 15 * kByteOnes;

inline uint32_t word(const std::byte* bytes, size_t index) {
  uint32_t w;
  std::memcpy(&w, bytes + 4 * index, sizeof w);
  return w;
}

inline F16 half(const std::byte* bytes) {
  F16 h;
  std::memcpy(&h, bytes, sizeof h);
  return h;
}

// Bit i of the low nibble becomes bit 0 of byte i.
inline uint32_t spread_bits(uint32_t nibble) { return (nibble * 0x00204081u) & kLow1; }

// Byte offsets inside a block of the file.
struct Fields {
  size_t low, high, scales, d, min;
};

constexpr Fields fields(TensorType type) {
  switch (type) {
    case TensorType::kQ8_0:
    case TensorType::kQ4_0:
    case TensorType::kIQ4_NL:
      return {.low = 2, .high = 0, .scales = 0, .d = 0, .min = 0};
    case TensorType::kQ4_1:
      return {.low = 4, .high = 0, .scales = 0, .d = 0, .min = 2};
    case TensorType::kQ5_0:
      return {.low = 6, .high = 2, .scales = 0, .d = 0, .min = 0};
    case TensorType::kQ5_1:
      return {.low = 8, .high = 4, .scales = 0, .d = 0, .min = 2};
    case TensorType::kQ2_K:
      return {.low = 16, .high = 0, .scales = 0, .d = 80, .min = 82};
    case TensorType::kQ3_K:
      return {.low = 32, .high = 0, .scales = 96, .d = 108, .min = 0};
    case TensorType::kQ4_K:
      return {.low = 16, .high = 0, .scales = 4, .d = 0, .min = 2};
    case TensorType::kQ5_K:
      return {.low = 48, .high = 16, .scales = 4, .d = 0, .min = 2};
    case TensorType::kQ6_K:
      return {.low = 0, .high = 128, .scales = 192, .d = 208, .min = 0};
    default:
      return {};
  }
}

inline uint8_t u8(std::byte b) { return std::to_integer<uint8_t>(b); }

// Eight 6-bit scales, then eight 6-bit minimum scales, in 12 bytes (Q4_K, Q5_K).
inline void read_6bit_pairs(const std::byte* packed, BlockScales& out) {
  for (size_t g = 0; g < 4; ++g) {
    const uint8_t a = u8(packed[g]), b = u8(packed[g + 4]), c = u8(packed[g + 8]);
    out.scale[g] = static_cast<int8_t>(a & 63);
    out.min_scale[g] = b & 63;
    out.scale[g + 4] = static_cast<int8_t>((c & 15) | (a >> 6) << 4);
    out.min_scale[g + 4] = static_cast<uint8_t>((c >> 4) | (b >> 6) << 4);
  }
}

// Sixteen 6-bit scales minus 32 in 12 bytes: 8 of low nibbles, 4 of high pairs (Q3_K).
inline void read_6bit_signed(const std::byte* packed, BlockScales& out) {
  for (size_t g = 0; g < 16; ++g) {
    const int low = u8(packed[g % 8]) >> (g < 8 ? 0 : 4) & 15;
    const int high = u8(packed[8 + g % 4]) >> (g / 4 * 2) & 3;
    out.scale[g] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

}  // namespace blocks

inline BlockScales read_scales(TensorType type, const std::byte* block) {
  using namespace blocks;
  const Fields at = fields(type);
  BlockScales out;
  out.d = half(block + at.d);
  if (quant_format(type)->has_min) out.min = half(block + at.min);
  const std::byte* packed = block + at.scales;
  switch (type) {
    case TensorType::kQ2_K:
      for (size_t g = 0; g < 16; ++g) {
        out.scale[g] = static_cast<int8_t>(u8(packed[g]) & 15);
        out.min_scale[g] = u8(packed[g]) >> 4;
      }
      break;
    case TensorType::kQ3_K:
      read_6bit_signed(packed, out);
      break;
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      read_6bit_pairs(packed, out);
      break;
    case TensorType::kQ6_K:
      std::memcpy(out.scale, packed, sizeof out.scale);
      break;
    default:
      break;
  }
  return out;
}

/// Codes of the 32 weights number part (0 to 7 for K-quants, else 0) of a block; word j holds
/// columns 4j to 4j+3.
inline void read_codes(TensorType type, const std::byte* block, size_t part, uint32_t codes[8]) {
  using namespace blocks;
  const Fields at = fields(type);
  const std::byte *low = block + at.low, *high = block + at.high;
  const size_t half_block = part / 4, quarter = part % 4;
  switch (type) {
    case TensorType::kQ8_0:
      for (size_t j = 0; j < 8; ++j) codes[j] = word(low, j) ^ 128 * kByteOnes;
      break;
    case TensorType::kQ5_0:
    case TensorType::kQ5_1:
      for (size_t j = 0; j < 8; ++j) {
        codes[j] =
            (word(low, j % 4) >> j / 4 * 4 & kLow4) | spread_bits(word(high, 0) >> 4 * j & 15) << 4;
      }
      break;
    case TensorType::kQ2_K:
      for (size_t j = 0; j < 8; ++j)
        codes[j] = word(low, 8 * half_block + j) >> 2 * quarter & kLow2;
      break;
    case TensorType::kQ3_K:
      for (size_t j = 0; j < 8; ++j) {
        codes[j] = (word(low, 8 * half_block + j) >> 2 * quarter & kLow2) |
                   (word(high, j) >> part & kLow1) << 2;
      }
      break;
    case TensorType::kQ4_K:
      for (size_t j = 0; j < 8; ++j) codes[j] = word(low, part / 2 * 8 + j) >> part % 2 * 4 & kLow4;
      break;
    case TensorType::kQ5_K:
      for (size_t j = 0; j < 8; ++j) {
        codes[j] = (word(low, part / 2 * 8 + j) >> part % 2 * 4 & kLow4) |
                   (word(high, j) >> part & kLow1) << 4;
      }
      break;
    case TensorType::kQ6_K:
      for (size_t j = 0; j < 8; ++j) {
        const uint32_t nibbles = word(low, 16 * half_block + quarter % 2 * 8 + j);
        codes[j] = (nibbles >> quarter / 2 * 4 & kLow4) |
                   (word(high, 8 * half_block + j) >> 2 * quarter & kLow2) << 4;
      }
      break;
    default:  // Q4_0, Q4_1, IQ4_NL
      for (size_t j = 0; j < 8; ++j) codes[j] = word(low, j % 4) >> j / 4 * 4 & kLow4;
  }
}

}  // namespace reprise::kernels

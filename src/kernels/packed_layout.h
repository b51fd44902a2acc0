// How a PackedMatrix lies in memory. A panel is 16 rows; lane r of every register is row r.
//
//   F32       [cols][16] float
//   F16       [cols][16] f16
//   BF16      [pairs of cols][16][2] bf16, an odd last column paired with zero
//   quantised scales of all blocks of 32 columns, padded to 64 bytes, then their codes
//
// Scales: per block d f16[16] and, with a minimum, min f16[16]. K-quants: per 256 columns d (and
// min) and then per group the integers i8[16] (and u8[16]); those of Q2_K are 4 bits and share a
// byte.
//
// Codes: a register of 16 rows x 4 columns (byte 4r + c) is what one VNNI dot product consumes; a
// block is 8 of them, split in planes of bits so that each type keeps its size:
//   8 bits  8 registers
//   4 bits  4 registers, low nibbles columns 0-15 and high nibbles columns 16-31 (4, 5 and 6 bits)
//   2 bits  2 registers, bits 2t of register i belong to code register 4i + t (2, 3 and 6 bits)
//   1 bit   1 register, bit j belongs to code register j (3 and 5 bits)
// with the widest plane first and in the low bits of the code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/quant.h"

namespace reprise::kernels {

inline constexpr size_t kPanelRows = 16;
inline constexpr size_t kBlockCols = 32;

// Always inlined: no copy compiled for an instruction set may be what the linker keeps for all.
// Of a block, or of 256 columns of a K-quant.
[[gnu::always_inline]] constexpr size_t scale_bytes(const QuantFormat& f) {
  const size_t kinds = f.has_min ? 2 : 1;
  if (!f.super) return 32 * kinds;
  return 32 * kinds + f.groups() * kPanelRows * (f.bits == 2 ? 1 : kinds);
}
// Of a block.
[[gnu::always_inline]] constexpr size_t code_bytes(const QuantFormat& f) { return f.bits * 64; }
// Of a block with its share of the scales.
[[gnu::always_inline]] constexpr size_t block_bytes(const QuantFormat& f) {
  return code_bytes(f) + scale_bytes(f) / (f.super ? 8 : 1);
}

struct PackedLayout {
  TensorType type = TensorType::kF32;
  size_t cols = 0;
  size_t blocks = 0;        // of 32 columns, the last may be partly empty (float types)
  size_t codes_offset = 0;  // inside a panel; quantised types
  size_t panel_bytes = 0;   // a multiple of 64
};

PackedLayout packed_layout(TensorType type, size_t cols);

/// Codes and scales of the 32 columns of block in row lane of a panel of a quantised type.
struct PackedBlock {
  uint32_t codes[8];
  GroupScale scales[2];  // of each 16 columns
};
PackedBlock read_packed(const PackedLayout& layout, const std::byte* panel, size_t block,
                        size_t lane);
/// Weights of up to 32 columns of block in row lane, any type; zero beyond the last column.
void unpack_block(const PackedLayout& layout, const std::byte* panel, size_t block, size_t lane,
                  float out[kBlockCols]);

/// Calls f with std::integral_constant<TensorType, type>; quantised types only.
template <class F>
void for_quantized(TensorType type, F&& f) {
  using enum TensorType;
  switch (type) {
    case kQ8_0:
      return f(std::integral_constant<TensorType, kQ8_0>{});
    case kQ4_0:
      return f(std::integral_constant<TensorType, kQ4_0>{});
    case kQ4_1:
      return f(std::integral_constant<TensorType, kQ4_1>{});
    case kQ5_0:
      return f(std::integral_constant<TensorType, kQ5_0>{});
    case kQ5_1:
      return f(std::integral_constant<TensorType, kQ5_1>{});
    case kQ2_K:
      return f(std::integral_constant<TensorType, kQ2_K>{});
    case kQ3_K:
      return f(std::integral_constant<TensorType, kQ3_K>{});
    case kQ4_K:
      return f(std::integral_constant<TensorType, kQ4_K>{});
    case kQ5_K:
      return f(std::integral_constant<TensorType, kQ5_K>{});
    case kQ6_K:
      return f(std::integral_constant<TensorType, kQ6_K>{});
    case kIQ4_NL:
      return f(std::integral_constant<TensorType, kIQ4_NL>{});
    case kF32:
    case kF16:
    case kBF16:
      return;
  }
}

}  // namespace reprise::kernels

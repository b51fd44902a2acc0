// Quantised weights as GGUF files store them: w = scale * (value of the code) + minimum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/float16.h"
#include "base/tensor_type.h"

namespace reprise::kernels {

/// How the codes and scales of a quantised type read; the same for the file's and the packed
/// layout.
struct QuantFormat {
  uint32_t bits;        // of a code; 2, 3, 4, 5, 6 or 8
  uint32_t zero_shift;  // the code 2^zero_shift means weight 0; 0 where the type has a minimum
  uint32_t group;       // weights per scale, 16 or 32
  bool has_min;         // w = scale * code + min, else scale * (code - zero)
  bool super;           // scales are integers times one f16 per 256 weights (K-quants)
  bool lookup;          // codes index kIq4Values (IQ4_NL)

  // Always inlined: no copy compiled for an instruction set may be what the linker keeps for all.
  [[gnu::always_inline]] constexpr int32_t zero() const {
    return zero_shift == 0 ? 0 : 1 << zero_shift;
  }
  // Of a K-quant's block.
  [[gnu::always_inline]] constexpr size_t groups() const { return 256 / group; }
};

/// Empty for F32, F16 and BF16.
constexpr std::optional<QuantFormat> quant_format(TensorType type) {
  switch (type) {
    case TensorType::kQ8_0:
      return QuantFormat{8, 7, 32, false, false, false};
    case TensorType::kQ4_0:
      return QuantFormat{4, 3, 32, false, false, false};
    case TensorType::kQ4_1:
      return QuantFormat{4, 0, 32, true, false, false};
    case TensorType::kQ5_0:
      return QuantFormat{5, 4, 32, false, false, false};
    case TensorType::kQ5_1:
      return QuantFormat{5, 0, 32, true, false, false};
    case TensorType::kQ2_K:
      return QuantFormat{2, 0, 16, true, true, false};
    case TensorType::kQ3_K:
      return QuantFormat{3, 2, 16, false, true, false};
    case TensorType::kQ4_K:
      return QuantFormat{4, 0, 32, true, true, false};
    case TensorType::kQ5_K:
      return QuantFormat{5, 0, 32, true, true, false};
    case TensorType::kQ6_K:
      return QuantFormat{6, 5, 16, false, true, false};
    case TensorType::kIQ4_NL:
      return QuantFormat{4, 7, 32, false, false, true};
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      return std::nullopt;
  }
  return std::nullopt;
}

/// Values of the IQ4_NL codes plus 128, so that they are unsigned and 128 is weight 0.
inline constexpr uint8_t kIq4Values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                           129, 141, 153, 166, 181, 197, 217, 241};

/// Four codes side by side, the first column in the lowest byte.
inline constexpr uint32_t kByteOnes = 0x01010101u;

/// Scales of one block of the file (32 weights, or 256 of a K-quant).
struct BlockScales {
  F16 d, min;             // w = d * code + min; K-quants: d * scale[g] * code - min * min_scale[g]
  int8_t scale[16] = {};  // K-quants, one per group
  uint8_t min_scale[16] = {};
};

/// The scale and minimum of group g (of a K-quant; else 0) in float.
struct GroupScale {
  float scale, min;
};
GroupScale group_scale(const QuantFormat& format, const BlockScales& scales, size_t g);

/// Weights of 32 codes; the two halves have scales of their own.
void dequantize_codes(const QuantFormat& format, const uint32_t codes[8],
                      const GroupScale scales[2], float out[32]);

/// out[i] = the i-th weight of a row of cols weights, any type. cols is a multiple of the type's
/// block.
void dequantize_row(TensorType type, const std::byte* row, size_t cols, float* out);

}  // namespace reprise::kernels

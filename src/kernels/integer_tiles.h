// Operands of the prefill without bf16 products: 16 rows of a step of 32 columns, as integers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/packed_layout.h"

namespace reprise::kernels {

/// Whether weights of a type are multiplied by activations of 8 bits, or of 16: those whose codes
/// have 6 bits and more are worth them, and gain nothing from fewer.
[[gnu::always_inline]] constexpr bool takes_int8(const QuantFormat& f) {
  return f.bits < 6 && !f.lookup;
}

/// for_quantized() for these types alone.
template <class F>
void for_int8(TensorType type, F&& f) {
  for_quantized(type, [&](auto t) {
    if constexpr (takes_int8(*quant_format(decltype(t)::value))) f(t);
  });
}
template <class F>
void for_int16(TensorType type, F&& f) {
  for_quantized(type, [&](auto t) {
    if constexpr (!takes_int8(*quant_format(decltype(t)::value))) f(t);
  });
}

/// Activations: x = scale * q but for the largest magnitude of a row, scale * top, whose q is 0.
/// Without it the steps of the others would often be several times as large.
struct alignas(64) Int8Activations {
  int8_t q[16][kBlockCols];
  float scale[16], top[16];  // of rows
  float sum[3][16];          // of rows as rounded: the first 16 columns, the last 16, all 32
  uint8_t top_column[16];

  /// inverse: of the row's scale.
  [[gnu::always_inline]] void set_top(size_t row, float value, size_t column, float inverse) {
    top[row] = value * inverse;
    top_column[row] = static_cast<uint8_t>(column);
  }
  /// After set_top(). sums: of the row's first and last 16 q.
  [[gnu::always_inline]] void set_sums(size_t row, float unit, const int32_t (&sums)[2]) {
    scale[row] = unit;
    for (size_t i = 0; i < 3; ++i) {
      const auto first = static_cast<float>(sums[0]), second = static_cast<float>(sums[1]);
      const float of_q = i == 0 ? first : i == 1 ? second : first + second;
      const bool holds_top = i == 2 || top_column[row] / 16 == i;
      sum[i][row] = unit * (of_q + (holds_top ? top[row] : 0.0f));
    }
  }
};
inline constexpr float kLargestInt8 = 127;
/// Values beside one this many times as large are rounded to its steps.
inline constexpr float kLargestTop = 1024;

/// Weights: w = scale * code + min, be it for the type's minimum or its zero.
struct alignas(64) Int8Weights {
  uint8_t codes[8][16][4];         // [columns 4j to 4j + 3][row][column]
  float scale[2][16], min[2][16];  // of rows, over 16 columns each, or scale[0] and min[0] over 32
};

/// Activations: x = scale * q, scale = max |x| / kLargestInt16.
struct alignas(64) Int16Activations {
  int16_t q[16][kBlockCols];
  float scale[16];  // of rows
};
inline constexpr float kLargestInt16 = 32767;

/// Weights of types without a minimum: w = scale * code.
struct alignas(64) Int16Weights {
  int16_t codes[16][16][2];  // [column pair][row][column], less the type's zero
  float scale[2][16];        // of rows, over 16 columns each, or scale[0] over 32
};

}  // namespace reprise::kernels

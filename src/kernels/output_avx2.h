// Writes sums of 8 outputs; included by *_avx2.cc only.
#pragma once

#include "kernels/avx2.h"
#include "kernels/matmul_isa.h"

namespace reprise::kernels {
namespace {

inline void write_half(const MatmulOut& out, size_t row, size_t column, __m256 sum) {
  float* at = out.data + row * out.stride + column;
  if (column + 8 <= out.cols) {
    if (out.bias) sum = _mm256_add_ps(sum, _mm256_loadu_ps(out.bias + column));
    if (out.accumulate) sum = _mm256_add_ps(_mm256_loadu_ps(at), sum);
    _mm256_storeu_ps(at, sum);
    return;
  }
  float values[8];
  _mm256_storeu_ps(values, sum);
  for (size_t i = 0; column + i < out.cols; ++i) {
    if (out.bias) values[i] += out.bias[column + i];
    at[i] = out.accumulate ? at[i] + values[i] : values[i];
  }
}

}  // namespace
}  // namespace reprise::kernels

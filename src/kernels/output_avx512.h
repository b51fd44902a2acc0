// Writes sums of 16 outputs; included by *_avx512.cc only.
#pragma once

#include <immintrin.h>

#include "kernels/matmul_isa.h"

namespace reprise::kernels {
namespace {

inline void write_panel(const MatmulOut& out, size_t row, size_t column, __m512 sum) {
  if (column >= out.cols) return;
  const size_t left = out.cols - column;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1);
  float* at = out.data + row * out.stride + column;
  if (out.bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, out.bias + column));
  if (out.accumulate) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, at), sum);
  _mm512_mask_storeu_ps(at, mask, sum);
}

}  // namespace
}  // namespace reprise::kernels

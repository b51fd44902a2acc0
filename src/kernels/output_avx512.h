// Writes sums of 16 outputs; included by *_avx512.cc and *_amx.cc only.
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

/// Up to 16 rows of a job from row, whose sums are complete.
inline void write_row_tile(const MultiplyJob& job, size_t row) {
  const size_t count = job.rows - row < 16 ? job.rows - row : 16;
  const float* sums = job.sums + row / 16 * kSumElements;
  for (size_t r = 0; r < count; ++r) {
    write_panel(job.out, row + r, job.column, _mm512_load_ps(sums + 16 * r));
    write_panel(job.out, row + r, job.column + 16, _mm512_load_ps(sums + 256 + 16 * r));
  }
}

}  // namespace
}  // namespace reprise::kernels

// The softmax of decode with AVX-512. Everything is static: see simd_avx512.h.
#pragma once

#include "kernels/attention_decode.h"
#include "kernels/simd_avx512.h"
#include "kernels/softmax_avx512.h"

namespace reprise::kernels {
namespace {

struct Softmax512 {
  using Logits = __m512;

  static void clear(const RowSums& sums) {
    clear_row(sums.values, sums.width, sums.base, sums.totals);
  }

  template <int R>
  [[gnu::always_inline]] static void weigh(const PageOfRows& seen, const RowSums& sums,
                                           __m512 (&logits)[R]) {
    for (int r = 0; r < R; ++r) {
      const size_t row = seen.row + static_cast<size_t>(r);
      logits[r] = weigh_row(seen, row, sums.from(static_cast<size_t>(r)), logits[r]);
    }
  }

  static __m512 weigh_row(const PageOfRows& seen, size_t row, const RowSums& sums, __m512 logits) {
    if (seen.adjusted) logits = adjust_logits(seen.args, row, &seen.page, logits);
    if (seen.args.logits != nullptr) keep_logits(seen.args, row, &seen.page, logits);
    move_base(logits, sums.base, sums.totals, sums.values, sums.width);
    const __m512 weights = exp2_512(_mm512_sub_ps(logits, _mm512_set1_ps(*sums.base)));
    _mm512_storeu_ps(sums.totals, _mm512_add_ps(_mm512_loadu_ps(sums.totals), weights));
    return weights;
  }

  static void finish(const RowSums& sums, size_t head_dim, float* out, float* lse) {
    finish_row(sums.values, *sums.base, sums.totals, head_dim, out, lse);
  }
};

}  // namespace
}  // namespace reprise::kernels

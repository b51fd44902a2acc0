// Softmax steps that the AVX-512 and AMX kernels share. Logits are in units of log2. Everything is
// static: see simd_avx512.h.
#pragma once

#include <cmath>

#include "kernels/arena.h"
#include "kernels/attention.h"
#include "kernels/attention_rows.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {

static constexpr float kLog2e = 1.44269504f, kLn2 = 0.69314718f;
// The base of a row that has seen no key: finite, so that no difference with it is NaN.
static constexpr float kNoBase = -3.0e38f;

// out = q scale log2(e), as pairs of bf16 or as floats.
template <bool kRounds>
static inline void scale_row(const float* q, size_t n, float scale, uint32_t* out) {
  const __m512 factor = _mm512_set1_ps(scale * kLog2e);
  for (size_t i = 0; i < n; i += 16) {
    const unsigned left = static_cast<unsigned>(n - i);
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(first_lanes(left), q + i), factor);
    if constexpr (kRounds) {
      const __m256bh packed = _mm512_cvtneps_pbh(x);
      _mm256_mask_storeu_epi32(out + i / 2, static_cast<__mmask8>(first_lanes(left / 2)),
                               (__m256i)packed);
    } else {
      _mm512_mask_storeu_ps(out + i, first_lanes(left), x);
    }
  }
}

static inline void clear_row(float* sums, size_t dims, float* base, float* totals) {
  for (size_t i = 0; i < dims; i += 16) _mm512_storeu_ps(sums + i, _mm512_setzero_ps());
  _mm512_storeu_ps(totals, _mm512_setzero_ps());
  *base = kNoBase;
}

// Caps, biases and masks the logits of a row and a page (null = all masked).
static inline __m512 adjust_logits(const AttendArgs& args, size_t row, const PageSpan* page,
                                   __m512 x) {
  if (page == nullptr) return _mm512_set1_ps(-__builtin_inff());
  if (args.soft_cap > 0.0f) x = capped_512(x, args.soft_cap * kLog2e);
  if (page->bias != nullptr) {
    x = _mm512_fmadd_ps(_mm512_loadu_ps(page->bias), _mm512_set1_ps(kLog2e), x);
  }
  return masked_512(x, visible_slots(args, row, *page));
}

// Gives the adjusted logits of a row and a page (null = absent) back, in natural units.
static inline void keep_logits(const AttendArgs& args, size_t row, const PageSpan* page, __m512 x) {
  if (page == nullptr) return;
  _mm512_storeu_ps(kept_logits(args, row, *page), _mm512_mul_ps(x, _mm512_set1_ps(kLn2)));
}

// Weights are 2^(logit - base). The base of a row is 0 unless that could overflow or lose its
// weights: weights up to 2^kReach cost nothing in floating point, so most rows are never rescaled.
// It is a whole number, so that weights are rounded to bf16 alike whatever it is (on a GPU too).
static constexpr float kReach = 60.0f;

// Moves the base of a row, where it must, for logits whose lane-wise maximum is `top`, rescaling
// what was summed before. The choice depends on nothing but the row's own logits.
static inline void move_base(__m512 top, float* base, float* totals, float* sums, size_t dims) {
  const __m512 limit = _mm512_set1_ps(*base + kReach);
  if (_mm512_cmp_ps_mask(top, limit, _CMP_GT_OQ) == 0) return;
  const float largest = _mm512_reduce_max_ps(top);
  const bool near = *base == kNoBase && largest <= kReach && largest >= -kReach;
  const float next = near ? 0.0f : __builtin_ceilf(largest);
  const __m512 keep = exp2_512(_mm512_set1_ps(*base - next));
  *base = next;
  _mm512_storeu_ps(totals, _mm512_mul_ps(_mm512_loadu_ps(totals), keep));
  for (size_t i = 0; i < dims; i += 16) {
    _mm512_storeu_ps(sums + i, _mm512_mul_ps(_mm512_loadu_ps(sums + i), keep));
  }
}

// Normalises one row: out = sums / total, lse in natural units.
static inline void finish_row(const float* sums, float base, const float* totals, size_t head_dim,
                              float* out, float* lse) {
  const float total = _mm512_reduce_add_ps(_mm512_loadu_ps(totals));
  const __m512 inverse = _mm512_set1_ps(total > 0.0f ? 1.0f / total : 0.0f);
  for (size_t i = 0; i < head_dim; i += 16) {
    const __mmask16 lanes = first_lanes(static_cast<unsigned>(head_dim - i));
    _mm512_mask_storeu_ps(out + i, lanes, _mm512_mul_ps(_mm512_loadu_ps(sums + i), inverse));
  }
  *lse = total > 0.0f ? base * kLn2 + logf(total) : -__builtin_inff();
}

}  // namespace reprise::kernels

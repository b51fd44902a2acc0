// Softmax steps that the AVX2 kernels of attention share. Logits are in units of log2. Everything
// is static: see simd_avx2.h.
#pragma once

#include <cmath>

#include "kernels/attention_rows.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {

static constexpr size_t kVector = 8;
static constexpr float kLog2e = 1.44269504f, kLn2 = 0.69314718f;
// See softmax_avx512.h.
static constexpr float kNoBase = -3.0e38f, kReach = 60.0f;

// Of the 16 tokens of a page.
struct Logits256 {
  __m256 low, high;

  __m256 top() const { return _mm256_max_ps(low, high); }
};

// out = q scale log2(e)
static inline void scale_row(const float* q, size_t n, float scale, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = q[i] * (scale * kLog2e);
}

static inline void clear_row(const RowSums& sums) {
  __builtin_memset(sums.values, 0, sums.width * sizeof(float));
  __builtin_memset(sums.totals, 0, kPageTokens * sizeof(float));
  *sums.base = kNoBase;
}

// Caps, biases and masks 8 logits from slot `slot` of a page.
static inline __m256 adjust_logits(const AttendArgs& args, const PageSpan& page, uint32_t visible,
                                   int slot, __m256 x) {
  if (args.soft_cap > 0.0f) x = capped_256(x, args.soft_cap * kLog2e);
  if (page.bias != nullptr) {
    x = _mm256_fmadd_ps(_mm256_loadu_ps(page.bias + slot), _mm256_set1_ps(kLog2e), x);
  }
  return visible == kAllSlots ? x : masked_256(x, visible >> slot);
}

static inline Logits256 adjust_logits(const AttendArgs& args, size_t row, const PageSpan& page,
                                      const Logits256& x) {
  const uint32_t visible = visible_slots(args, row, page);
  return {adjust_logits(args, page, visible, 0, x.low),
          adjust_logits(args, page, visible, 8, x.high)};
}

// Gives the adjusted logits of a row and a page back, in natural units.
static inline void keep_logits(const AttendArgs& args, size_t row, const PageSpan& page,
                               const Logits256& x) {
  float* const kept = kept_logits(args, row, page);
  _mm256_storeu_ps(kept, _mm256_mul_ps(x.low, _mm256_set1_ps(kLn2)));
  _mm256_storeu_ps(kept + kVector, _mm256_mul_ps(x.high, _mm256_set1_ps(kLn2)));
}

static inline void multiply_all(float* x, size_t n, __m256 factor) {
  for (size_t i = 0; i < n; i += kVector) {
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
  }
}

// Lanes of `top` that the base of a row must move for, as with AVX-512: rarely, for weights that
// could overflow or be lost.
static inline __m256 beyond_base(__m256 top, float base) {
  return _mm256_cmp_ps(top, _mm256_set1_ps(base + kReach), _CMP_GT_OQ);
}

// Moves it if it must, rescaling what was summed before.
[[gnu::noinline]] static void move_base(__m256 top, const RowSums& sums) {
  const float largest = max_256(top), former = *sums.base;
  if (!(largest > former + kReach)) return;
  const bool near = former == kNoBase && largest <= kReach && largest >= -kReach;
  *sums.base = near ? 0.0f : __builtin_ceilf(largest);
  const __m256 keep = exp2_256(_mm256_set1_ps(former - *sums.base));
  multiply_all(sums.totals, kPageTokens, keep);
  multiply_all(sums.values, sums.width, keep);
}

static inline void add_to(float* to, __m256 x) {
  _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), x));
}

// Turns logits into weights, and adds them to the totals of the row.
static inline Logits256 weights_of(const Logits256& logits, const RowSums& sums) {
  const __m256 base = _mm256_set1_ps(*sums.base);
  const Logits256 weights = {exp2_256(_mm256_sub_ps(logits.low, base)),
                             exp2_256(_mm256_sub_ps(logits.high, base))};
  add_to(sums.totals, weights.low);
  add_to(sums.totals + kVector, weights.high);
  return weights;
}

// Normalises one row: out = values / total, lse in natural units.
static inline void finish_row(const RowSums& sums, size_t head_dim, float* out, float* lse) {
  const float total =
      sum_256(_mm256_add_ps(_mm256_loadu_ps(sums.totals), _mm256_loadu_ps(sums.totals + kVector)));
  const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
  for (size_t d = 0; d < head_dim; ++d) out[d] = sums.values[d] * inverse;
  *lse = total > 0.0f ? *sums.base * kLn2 + logf(total) : -__builtin_inff();
}

}  // namespace reprise::kernels

#include "kernels/simd_avx512.h"
#include "kernels/softmax_isa.h"

namespace reprise::kernels {
namespace {

constexpr size_t kLanes = 16;
constexpr float kLog2e = 1.44269504f;

// Calls body(offset, lanes) for whole vectors and the masked rest.
template <typename Body>
inline void for_vectors(size_t n, Body body) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, static_cast<__mmask16>(0xffff));
  if (i < n) body(i, first_lanes(static_cast<unsigned>(n - i)));
}

constexpr size_t kPagesAtOnce = 4;

struct SumOf {
  __m512 operator()(__m512 a, __m512 b) const { return _mm512_add_ps(a, b); }
  __m128 operator()(__m128 a, __m128 b) const { return _mm_add_ps(a, b); }
};

struct LargestOf {
  __m512 operator()(__m512 a, __m512 b) const { return _mm512_max_ps(a, b); }
  __m128 operator()(__m128 a, __m128 b) const { return _mm_max_ps(a, b); }
};

// What the lanes of each of four vectors make together: a step of shuffles serves several vectors.
template <class Join>
inline __m128 join_pages(const __m512* x, Join join) {
  const __m512 ab = join(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
  const __m512 cd = join(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
  const __m512 all = join(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m128 low = join(_mm512_castps512_ps128(all), _mm512_extractf32x4_ps(all, 1));
  return join(low, join(_mm512_extractf32x4_ps(all, 2), _mm512_extractf32x4_ps(all, 3)));
}

// What the weights exp(x - base) of each page make together; returns all weights, lane by lane.
// out may be x: pages leave theirs where logits of earlier pages were.
inline __m512 pool_pages(const float* x, size_t pages, bool largest, float base, float* out) {
  static_assert(kLanes == kSharePage);
  const __m512 bases = _mm512_set1_ps(base), log2e = _mm512_set1_ps(kLog2e);
  __m512 sums = _mm512_setzero_ps();
  for (size_t p = 0; p < pages; p += kPagesAtOnce) {
    __m512 weights[kPagesAtOnce];
    for (size_t i = 0; i < kPagesAtOnce; ++i) {
      const __mmask16 there = p + i < pages ? 0xffff : 0;
      const __m512 logit = _mm512_maskz_loadu_ps(there, x + (p + i) * kLanes);
      const __m512 weight = exp2_512(_mm512_mul_ps(_mm512_sub_ps(logit, bases), log2e));
      weights[i] = _mm512_maskz_mov_ps(there, weight);
      sums = _mm512_add_ps(sums, weights[i]);
    }
    const __m128 joined = largest ? join_pages(weights, LargestOf{}) : join_pages(weights, SumOf{});
    _mm_mask_storeu_ps(out + p, static_cast<__mmask8>(first_lanes(pages - p)), joined);
  }
  return sums;
}

}  // namespace

float softmax_avx512(float* x, size_t n) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 tops = lowest;
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    tops = _mm512_max_ps(tops, _mm512_mask_loadu_ps(lowest, lanes, x + i));
  });
  const float top = _mm512_reduce_max_ps(tops);
  // Nothing visible: subtracting 0 instead of -inf makes every weight 2^-inf = 0.
  const __m512 base = _mm512_set1_ps(top == -__builtin_inff() ? 0.0f : top);
  const __m512 log2e = _mm512_set1_ps(kLog2e);
  __m512 sums = _mm512_setzero_ps();
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    const __m512 logit = _mm512_mask_loadu_ps(lowest, lanes, x + i);
    const __m512 weight = exp2_512(_mm512_mul_ps(_mm512_sub_ps(logit, base), log2e));
    sums = _mm512_add_ps(sums, weight);
    _mm512_mask_storeu_ps(x + i, lanes, weight);
  });
  const float total = _mm512_reduce_add_ps(sums);
  if (!(total > 0.0f)) return -__builtin_inff();
  const __m512 inverse = _mm512_set1_ps(1.0f / total);
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    const __m512 weight = _mm512_maskz_loadu_ps(lanes, x + i);
    _mm512_mask_storeu_ps(x + i, lanes, _mm512_mul_ps(weight, inverse));
  });
  return top + __builtin_logf(total);
}

void page_shares_avx512(const float* x, size_t pages, bool largest, float lse, float* shares) {
  // Nothing visible: subtracting 0 instead of -inf makes every weight 2^-inf = 0.
  pool_pages(x, pages, largest, lse == -__builtin_inff() ? 0.0f : lse, shares);
}

void add_page_shares_avx512(float* x, size_t pages, bool largest, float factor, float* shares) {
  __m512 tops = _mm512_set1_ps(-__builtin_inff());
  for (size_t p = 0; p < pages; ++p) tops = _mm512_max_ps(tops, _mm512_loadu_ps(x + p * kLanes));
  const float top = _mm512_reduce_max_ps(tops);
  if (top == -__builtin_inff()) return;
  const float total = _mm512_reduce_add_ps(pool_pages(x, pages, largest, top, x));
  const __m512 scale = _mm512_set1_ps(factor / total);
  for_vectors(pages, [&](size_t i, __mmask16 lanes) {
    const __m512 share = _mm512_mul_ps(scale, _mm512_maskz_loadu_ps(lanes, x + i));
    const __m512 sum = _mm512_add_ps(share, _mm512_maskz_loadu_ps(lanes, shares + i));
    _mm512_mask_storeu_ps(shares + i, lanes, sum);
  });
}

}  // namespace reprise::kernels

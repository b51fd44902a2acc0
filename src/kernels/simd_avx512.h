// Vector functions for sources compiled with AVX-512. Everything is static: the linker must not
// pick one of these for code that runs on a lesser machine.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)  // GCC bug 105593: undefined vectors by design
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>

namespace reprise::kernels {

// sum + a b over pairs of bf16.
static inline __m512 add_bf16_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

static inline __m512i broadcast(const uint32_t* from) {
  return _mm512_set1_epi32(static_cast<int>(*from));
}

// Rounded to bf16 as to_bf16() does, in the upper halves; the lower ones mean nothing.
static inline __m512i rounded_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
}

// 2^f on [0, 1) by a minimax polynomial of degree 5 with 2^0 = 1, scaled by 2^floor(x): relative
// error below 3e-7 (the rounding of the polynomial's sum included); 2^-inf is 0, overflow is inf.
static inline __m512 exp2_512(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 y = _mm512_set1_ps(1.8775767e-3f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(8.9893397e-3f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5826318e-2f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4015361e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9315308e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, x);
}

// The same with degree 4: relative error below 3e-6, for weights that are rounded to bf16 next.
static inline __m512 exp2_fast_512(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 y = _mm512_set1_ps(1.35341678e-2f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.20114601e-2f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.41442755e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.93003833e-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.00000262f));
  return _mm512_scalef_ps(y, x);
}

// tanh(x) = 1 - 2 / (e^2x + 1): absolute error below 4e-7.
static inline __m512 tanh_512(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
  const __m512 e = exp2_512(_mm512_mul_ps(x, _mm512_set1_ps(2.8853900817779268f)));  // 2 / ln 2
  return _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(e, one)));
}

// cap tanh(x / cap)
static inline __m512 capped_512(__m512 x, float cap) {
  const __m512 limit = _mm512_set1_ps(cap);
  return _mm512_mul_ps(limit, tanh_512(_mm512_div_ps(x, limit)));
}

// Lanes whose bit is not set become -inf.
static inline __m512 masked_512(__m512 x, uint32_t lanes) {
  const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
  return _mm512_mask_mov_ps(hidden, static_cast<__mmask16>(lanes), x);
}

// Lane i is the largest lane of rows[i].
static inline __m512 largest_lanes(const __m512 (&rows)[16]) {
  __m512 pairs[8], fours[4], eights[2];
  for (int i = 0; i < 8; ++i) {
    pairs[i] = _mm512_max_ps(_mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]),
                             _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]));
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  for (int i = 0; i < 2; ++i) {
    eights[i] = _mm512_max_ps(_mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                              _mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0xdd));
  }
  return _mm512_max_ps(_mm512_shuffle_f32x4(eights[0], eights[1], 0x88),
                       _mm512_shuffle_f32x4(eights[0], eights[1], 0xdd));
}

// Lanes [0, n) of 16.
static inline __mmask16 first_lanes(unsigned n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1u);
}

}  // namespace reprise::kernels

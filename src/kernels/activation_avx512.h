// Activations of gated layers. Everything is static: see simd_avx512.h.
#pragma once

#include "kernels/ops.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {

// x / (1 + e^-x)
static inline __m512 silu_512(__m512 x) {
  const __m512 e = exp2_512(_mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f)));
  return _mm512_div_ps(x, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
}

// Hendrycks & Gimpel 2016, tanh form; x/2 (1 + tanh(u)) = x / (1 + e^-2u)
static inline __m512 gelu_tanh_512(__m512 x) {
  const __m512 cubic = _mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f));
  const __m512 u = _mm512_fmadd_ps(cubic, x, x);
  // -2 sqrt(2/pi) / ln 2
  const __m512 e = exp2_512(_mm512_mul_ps(u, _mm512_set1_ps(-2.302208198f)));
  return _mm512_div_ps(x, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
}

static inline __m512 activated_512(__m512 x, Activation activation) {
  return activation == Activation::kSilu ? silu_512(x) : gelu_tanh_512(x);
}

}  // namespace reprise::kernels

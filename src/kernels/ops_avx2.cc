#include "kernels/ops_isa.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

void rms_norm_256(const float* x, const float* weight, float eps, size_t n, float* out) {
  __m256 sum = _mm256_setzero_ps();
  for_vectors(n, [&](size_t i, auto lanes) {
    const __m256 value = lanes.load(x + i);
    sum = _mm256_fmadd_ps(value, value, sum);
  });
  const float mean = sum_256(sum) / static_cast<float>(n);
  const __m256 inverse = _mm256_set1_ps(1.0f / __builtin_sqrtf(mean + eps));
  for_vectors(n, [&](size_t i, auto lanes) {
    __m256 value = _mm256_mul_ps(lanes.load(x + i), inverse);
    if (weight != nullptr) value = _mm256_mul_ps(value, lanes.load(weight + i));
    lanes.store(out + i, value);
  });
}

void rope_256(float* x, const float* cos_sin, size_t heads, size_t head_dim, size_t pairs) {
  for (size_t head = 0; head < heads; ++head, x += head_dim) {
    for_vectors(2 * pairs, [&](size_t i, auto lanes) {
      const __m256 angle = lanes.load(cos_sin + i);
      const __m256 value = lanes.load(x + i);
      const __m256 swapped = _mm256_permute_ps(value, 0xb1);
      const __m256 sin_part = _mm256_mul_ps(swapped, _mm256_movehdup_ps(angle));
      lanes.store(x + i, _mm256_fmaddsub_ps(value, _mm256_moveldup_ps(angle), sin_part));
    });
  }
}

// x / (1 + e^-x)
inline __m256 silu(__m256 x) {
  const __m256 e = exp2_256(_mm256_mul_ps(x, _mm256_set1_ps(-1.44269504f)));
  return _mm256_div_ps(x, _mm256_add_ps(e, _mm256_set1_ps(1.0f)));
}

// Hendrycks & Gimpel 2016, tanh form; x/2 (1 + tanh(u)) = x / (1 + e^-2u)
inline __m256 gelu_tanh(__m256 x) {
  const __m256 cubic = _mm256_mul_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(0.044715f));
  const __m256 u = _mm256_fmadd_ps(cubic, x, x);
  // -2 sqrt(2/pi) / ln 2
  const __m256 e = exp2_256(_mm256_mul_ps(u, _mm256_set1_ps(-2.302208198f)));
  return _mm256_div_ps(x, _mm256_add_ps(e, _mm256_set1_ps(1.0f)));
}

void gated_activation_256(float* gate, const float* up, size_t n, Activation activation) {
  for_vectors(n, [&](size_t i, auto lanes) {
    const __m256 x = lanes.load(gate + i);
    const __m256 y = activation == Activation::kSilu ? silu(x) : gelu_tanh(x);
    lanes.store(gate + i, _mm256_mul_ps(y, lanes.load(up + i)));
  });
}

void soft_cap_256(float* x, size_t n, float cap) {
  for_vectors(
      n, [&](size_t i, auto lanes) { lanes.store(x + i, capped_256(lanes.load(x + i), cap)); });
}

void add_scaled_256(float* out, const float* x, float scale, size_t n) {
  const __m256 factor = _mm256_set1_ps(scale);
  for_vectors(n, [&](size_t i, auto lanes) {
    const __m256 sum = _mm256_fmadd_ps(lanes.load(x + i), factor, lanes.load(out + i));
    lanes.store(out + i, sum);
  });
}

void widen_256(const Bf16* x, size_t n, float* out) {
  const auto widened = [](__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  };
  size_t i = 0;
  for (; i + kLanes256 <= n; i += kLanes256) {
    _mm256_storeu_ps(out + i, widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  }
  widen_ref(x + i, n - i, out + i);
}

}  // namespace

RowOps row_ops_avx2() {
  return {rms_norm_256, rope_256, gated_activation_256, soft_cap_256, add_scaled_256, widen_256};
}

}  // namespace reprise::kernels

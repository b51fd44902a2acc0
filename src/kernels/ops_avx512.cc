#include "kernels/activation_avx512.h"
#include "kernels/ops_isa.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kLanes = 16;

// Calls body(offset, lanes) for whole vectors and the masked rest.
template <typename Body>
inline void for_vectors(size_t n, Body body) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, static_cast<__mmask16>(0xffff));
  if (i < n) body(i, first_lanes(static_cast<unsigned>(n - i)));
}

void rms_norm_512(const float* x, const float* weight, float eps, size_t n, float* out) {
  __m512 sum = _mm512_setzero_ps();
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    const __m512 value = _mm512_maskz_loadu_ps(lanes, x + i);
    sum = _mm512_fmadd_ps(value, value, sum);
  });
  const float mean = _mm512_reduce_add_ps(sum) / static_cast<float>(n);
  const __m512 inverse = _mm512_set1_ps(1.0f / __builtin_sqrtf(mean + eps));
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), inverse);
    if (weight != nullptr) value = _mm512_mul_ps(value, _mm512_maskz_loadu_ps(lanes, weight + i));
    _mm512_mask_storeu_ps(out + i, lanes, value);
  });
}

void rope_512(float* x, const float* cos_sin, size_t heads, size_t head_dim, size_t pairs) {
  for (size_t head = 0; head < heads; ++head, x += head_dim) {
    for_vectors(2 * pairs, [&](size_t i, __mmask16 lanes) {
      const __m512 angle = _mm512_maskz_loadu_ps(lanes, cos_sin + i);
      const __m512 value = _mm512_maskz_loadu_ps(lanes, x + i);
      const __m512 swapped = _mm512_permute_ps(value, 0xb1);
      const __m512 sin_part = _mm512_mul_ps(swapped, _mm512_movehdup_ps(angle));
      _mm512_mask_storeu_ps(x + i, lanes,
                            _mm512_fmaddsub_ps(value, _mm512_moveldup_ps(angle), sin_part));
    });
  }
}

void gated_activation_512(float* gate, const float* up, size_t n, Activation activation) {
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    const __m512 x = _mm512_maskz_loadu_ps(lanes, gate + i);
    const __m512 y = activated_512(x, activation);
    _mm512_mask_storeu_ps(gate + i, lanes, _mm512_mul_ps(y, _mm512_maskz_loadu_ps(lanes, up + i)));
  });
}

void soft_cap_512(float* x, size_t n, float cap) {
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    _mm512_mask_storeu_ps(x + i, lanes, capped_512(_mm512_maskz_loadu_ps(lanes, x + i), cap));
  });
}

void add_scaled_512(float* out, const float* x, float scale, size_t n) {
  const __m512 factor = _mm512_set1_ps(scale);
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    const __m512 sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, x + i), factor,
                                       _mm512_maskz_loadu_ps(lanes, out + i));
    _mm512_mask_storeu_ps(out + i, lanes, sum);
  });
}

void widen_512(const Bf16* x, size_t n, float* out) {
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, x + i));
    _mm512_mask_storeu_epi32(out + i, lanes, _mm512_slli_epi32(bits, 16));
  });
}

void widen_codes_512(const std::byte* codes, const std::byte* scales, size_t n, Bf16* out) {
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    uint16_t scale;
    __builtin_memcpy(&scale, scales + i / kScaleValues * sizeof scale, sizeof scale);
    const __m512i wide = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, codes + i));
    const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(wide), _mm512_set1_ps(_cvtsh_ss(scale)));
    const __m512i narrow = _mm512_srli_epi32(rounded_bf16(value), 16);
    _mm256_mask_storeu_epi16(out + i, lanes, _mm512_cvtepi32_epi16(narrow));
  });
}

}  // namespace

RowOps row_ops_avx512() {
  return {rms_norm_512,   rope_512,  gated_activation_512, soft_cap_512,
          add_scaled_512, widen_512, widen_codes_512};
}

}  // namespace reprise::kernels

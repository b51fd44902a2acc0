// Rounds activations to integers; included by *_avx2.cc only.
#pragma once

#include "kernels/avx2.h"
#include "kernels/matmul_isa.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

inline int32_t horizontal_sum(__m256i v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

inline float largest_magnitude(const __m256 values[4]) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 largest = _mm256_setzero_ps();
  for (size_t i = 0; i < 4; ++i) {
    largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, values[i]));
  }
  return max_256(largest);
}

// 32 values in units of scale, the largest of which is `top`, and the nearest integers.
struct RoundedBlock {
  RoundedBlock(const float* x, float top) {
    for (size_t i = 0; i < 4; ++i) values[i] = _mm256_loadu_ps(x + 8 * i);
    const float largest = largest_magnitude(values);
    const __m256 inverse = _mm256_set1_ps(largest > kSmallestMagnitude ? top / largest : 0.0f);
    scale = largest / top;
    for (size_t i = 0; i < 4; ++i) {
      values[i] = _mm256_mul_ps(values[i], inverse);
      q[i] = _mm256_cvtps_epi32(values[i]);
    }
  }

  __m256 values[4];
  __m256i q[4];
  float scale;
};

// As bytes, and the sums of the first and last 16.
inline void store_codes(const __m256i codes[4], int8_t* out, int32_t (&sums)[2]) {
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]),
                                           _mm256_packs_epi32(codes[2], codes[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs works per 128 bits
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(bytes, order));
  for (size_t half = 0; half < 2; ++half) {
    sums[half] = horizontal_sum(_mm256_add_epi32(codes[2 * half], codes[2 * half + 1]));
  }
}

}  // namespace
}  // namespace reprise::kernels

#include <immintrin.h>

#include "kernels/peak_isa.h"

namespace reprise::kernels {

void peak_avx2(size_t iterations) {
  __m256 sum[12];
  for (__m256& s : sum) s = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  for (size_t i = 0; i < iterations; ++i) {
    for (__m256& s : sum) s = _mm256_fmadd_ps(s, a, b);
  }
  for (const __m256& s : sum) asm volatile("" ::"x"(s));  // keeps the loop
}

}  // namespace reprise::kernels

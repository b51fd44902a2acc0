#include <cstring>

#include "kernels/avx2.h"
#include "kernels/peak_isa.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {

void peak_avx2(size_t iterations) {
  constexpr size_t kSums = 12;
  __m256 sum[kSums];
  for (__m256& s : sum) s = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  for (size_t i = 0; i < iterations; ++i) {
    for (__m256& s : sum) s = _mm256_fmadd_ps(s, a, b);
  }
  for (size_t j = 1; j < kSums; ++j) sum[0] = _mm256_add_ps(sum[0], sum[j]);
  [[maybe_unused]] const volatile float kept = sum_256(sum[0]);  // keeps the loop
}

void peak_int8_avx2(size_t iterations) {
  constexpr size_t kSums = 12;
  __m256i sum[kSums];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  __m256i a = _mm256_set1_epi8(3);
  const __m256i b = _mm256_set1_epi8(5);
  for (size_t i = 0; i < iterations; ++i) {
    for (__m256i& s : sum) {
      a = in_order(a);  // else the product is taken out of the loop
      s = in_order(_mm256_add_epi16(s, _mm256_maddubs_epi16(a, b)));
    }
  }
  for (size_t j = 1; j < kSums; ++j) sum[0] = _mm256_add_epi16(sum[0], sum[j]);
  [[maybe_unused]] const volatile int kept = _mm256_extract_epi32(sum[0], 0);  // keeps the loop
}

uint64_t read_avx2(const uint64_t* words, size_t count) {
  __m256i sum[8];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (size_t i = 0; i < count; i += 32) {
    for (size_t j = 0; j < 8; ++j) {
      const auto* at = reinterpret_cast<const __m256i*>(words + i + 4 * j);
      sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(at));  // with fetches it is slower
    }
  }
  for (size_t j = 1; j < 8; ++j) sum[0] = _mm256_add_epi64(sum[0], sum[j]);
  alignas(64) uint64_t lanes[4];
  std::memcpy(lanes, &sum[0], sizeof lanes);
  uint64_t total = 0;
  for (const uint64_t lane : lanes) total += lane;
  return total;
}

}  // namespace reprise::kernels

#include <immintrin.h>

#include <cstring>

#include "kernels/peak_isa.h"

namespace reprise::kernels {
namespace {

constexpr size_t kAhead = 256;  // words: far enough to hide memory, near enough to stay in L1

}  // namespace

void peak_avx512(size_t iterations) {
  __m512 sum[24];
  for (__m512& s : sum) s = _mm512_set1_ps(0.0f);
  const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  for (size_t i = 0; i < iterations; ++i) {
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, a, a);
  }
  for (const __m512& s : sum) asm volatile("" ::"v"(s));  // keeps the loop
}

uint64_t read_avx512(const uint64_t* words, size_t count) {
  __m512i sum[8];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  for (size_t i = 0; i < count; i += 64) {
    for (size_t j = 0; j < 8; ++j) {
      const uint64_t* at = words + i + 8 * j;
      _mm_prefetch(reinterpret_cast<const char*>(at + kAhead), _MM_HINT_T0);
      sum[j] = _mm512_add_epi64(sum[j], _mm512_loadu_si512((at)));
    }
  }
  for (size_t j = 1; j < 8; ++j) sum[0] = _mm512_add_epi64(sum[0], sum[j]);
  alignas(64) uint64_t lanes[8];
  std::memcpy(lanes, &sum[0], sizeof lanes);
  uint64_t total = 0;
  for (const uint64_t lane : lanes) total += lane;
  return total;
}

}  // namespace reprise::kernels

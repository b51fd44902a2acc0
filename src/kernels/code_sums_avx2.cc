// Code sums with AVX2: 32 keys to a vector.
#include <bit>
#include <cmath>

#include "kernels/code_sums_isa.h"
#include "kernels/code_sums_rows.h"
#include "kernels/code_tables.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

struct Lanes256 {
  using Bytes = uint8_t __attribute__((vector_size(32)));
  using Words = uint16_t __attribute__((vector_size(32)));
  // entries of each code's
  static Bytes look_up(__m128i entries, Bytes codes) {
    return std::bit_cast<Bytes>(
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), std::bit_cast<__m256i>(codes)));
  }
};

// The keys' sums in order.
inline void store_sums(const Sums<Lanes256>& sums, uint16_t* out) {
  const auto even = std::bit_cast<__m256i>(sums.even), odd = std::bit_cast<__m256i>(sums.odd);
  const __m256i low = _mm256_unpacklo_epi16(even, odd);
  const __m256i high = _mm256_unpackhi_epi16(even, odd);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute2x128_si256(low, high, 0x20));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 16),
                      _mm256_permute2x128_si256(low, high, 0x31));
}

inline __m256i largest(const Sums<Lanes256>& sums) {
  return _mm256_max_epu16(std::bit_cast<__m256i>(sums.even), std::bit_cast<__m256i>(sums.odd));
}

// The largest sums of each 16 keys, which lie in a half of a vector.
inline void store_tops(const Sums<Lanes256> (&sums)[kVectors], uint16_t* out) {
  static_assert(kVectors == 2);
  const __m256i a = largest(sums[0]);
  const __m256i b = largest(sums[1]);
  __m256i top = _mm256_max_epu16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  top = _mm256_max_epu16(top, _mm256_srli_epi64(top, 32));
  top = _mm256_max_epu16(top, _mm256_srli_epi64(top, 16));
  top = _mm256_and_si256(_mm256_permute4x64_epi64(top, 0xd8), _mm256_set1_epi64x(65535));
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi32(words, words));
}

struct Products {  // of a query with the centroids of a part
  __m256 first, second;

  static Products zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  void add(float q, const float* centroids) {
    const __m256 factor = _mm256_set1_ps(q);
    first = _mm256_fmadd_ps(factor, _mm256_loadu_ps(centroids), first);
    second = _mm256_fmadd_ps(factor, _mm256_loadu_ps(centroids + 8), second);
  }
  float lowest() const {
    const __m256 all = _mm256_min_ps(first, second);
    __m128 x = _mm_min_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    x = _mm_min_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_min_ss(x, _mm_movehdup_ps(x)));
  }
  float highest() const { return max_256(_mm256_max_ps(first, second)); }
  void store(float low, float levels, uint8_t* entries) const {
    const __m256i a = rounded(first, low, levels), b = rounded(second, low, levels);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
    const __m128i bytes =
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(entries), bytes);
  }

 private:
  static __m256i rounded(__m256 x, float low, float levels) {
    x = _mm256_fmadd_ps(_mm256_sub_ps(x, _mm256_set1_ps(low)), _mm256_set1_ps(levels),
                        _mm256_set1_ps(0.5f));
    // Of two NaN operands max gives the second, so entries of no number are 0.
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_setzero_ps()), _mm256_set1_ps(kLargestEntry));
    return _mm256_cvttps_epi32(x);
  }
};

}  // namespace

void code_tables_avx2(const CodeTablesArgs& args) { fill_code_tables<Products>(args); }
void code_sums_avx2(const CodeSumsArgs& args) { all_sums<Lanes256, FetchInTurns, false>(args); }
void code_page_tops_avx2(const CodeSumsArgs& args) { all_sums<Lanes256, FetchInTurns, true>(args); }

void code_logits_avx2(const uint16_t* sums, size_t n, float low, float step, float* out) {
  const __m256 least = _mm256_set1_ps(low), level = _mm256_set1_ps(step);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sums + i));
    const __m256 sum = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(words));
    _mm256_storeu_ps(out + i, _mm256_fmadd_ps(level, sum, least));
  }
  // Rounded once, as the others are: where a sum lies does not show.
  for (; i < n; ++i) out[i] = std::fma(step, static_cast<float>(sums[i]), low);
}

}  // namespace reprise::kernels

// Code sums with AVX2: as in code_sums_avx512.cc, 32 keys and one row at a time.
#include <immintrin.h>

#include <cmath>

#include "kernels/code_sums_isa.h"
#include "kernels/code_tables.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

constexpr size_t kLanes = 32, kPages = kCodeBlock / 16;

// Sums of 32 keys in 16 bits: those at even places and those at odd ones.
struct Sums {
  __m256i even, odd;
};

inline __m256i load_table(const uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}

// codes: [planes][256] of a block, from one of its keys on.
inline Sums sum_keys(const CodeSumsArgs& args, const uint8_t* table, const uint8_t* codes) {
  const __m256i low = _mm256_set1_epi8(15);
  Sums sums = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (const size_t plane : args.used) {
    const uint8_t* entries = table + plane * 2 * kCodeEntries;
    const __m256i pair =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + plane * args.stride));
    const __m256i first_codes = _mm256_and_si256(pair, low);
    const __m256i second_codes = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
    const __m256i both =
        _mm256_add_epi8(_mm256_shuffle_epi8(load_table(entries), first_codes),
                        _mm256_shuffle_epi8(load_table(entries + kCodeEntries), second_codes));
    sums.even = _mm256_add_epi16(sums.even, both);  // and 256 times the odd ones, modulo 2^16
    sums.odd = _mm256_add_epi16(sums.odd, _mm256_srli_epi16(both, 8));
  }
  sums.even = _mm256_sub_epi16(sums.even, _mm256_slli_epi16(sums.odd, 8));
  return sums;
}

inline void store_sums(const Sums& sums, uint16_t* out) {
  const __m256i low = _mm256_unpacklo_epi16(sums.even, sums.odd);
  const __m256i high = _mm256_unpackhi_epi16(sums.even, sums.odd);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute2x128_si256(low, high, 0x20));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 16),
                      _mm256_permute2x128_si256(low, high, 0x31));
}

inline uint16_t largest(__m128i words) {
  const __m128i ones = _mm_set1_epi16(-1);
  return static_cast<uint16_t>(~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(words, ones)), 0));
}

inline void store_tops(const Sums& sums, uint16_t* out) {
  const __m256i top = _mm256_max_epu16(sums.even, sums.odd);
  out[0] = largest(_mm256_castsi256_si128(top));
  out[1] = largest(_mm256_extracti128_si256(top, 1));
}

template <bool kTops>
void all_sums(const CodeSumsArgs& args) {
  for (size_t row = 0; row < args.rows; ++row) {
    const uint8_t* table = args.tables + row * args.planes * 2 * kCodeEntries;
    uint16_t* out = args.out + row * args.out_stride;
    for (size_t block = 0; block < args.blocks; ++block) {
      const uint8_t* codes = args.codes[block];
      for (size_t at = 0; at < kCodeBlock; at += kLanes) {
        const Sums sums = sum_keys(args, table, codes + at);
        if constexpr (kTops) {
          store_tops(sums, out + block * kPages + at / 16);
        } else {
          store_sums(sums, out + block * kCodeBlock + at);
        }
      }
    }
  }
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
void code_sums_avx2(const CodeSumsArgs& args) { all_sums<false>(args); }
void code_page_tops_avx2(const CodeSumsArgs& args) { all_sums<true>(args); }

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

// Code sums with AVX-512: 64 keys to a vector.
#include "kernels/code_sums_isa.h"
#include "kernels/code_sums_rows.h"
#include "kernels/code_tables.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

struct Lanes512 {
  using Bytes = uint8_t __attribute__((vector_size(64)));
  using Words = uint16_t __attribute__((vector_size(64)));
  // entries of each code's
  static Bytes look_up(__m128i entries, Bytes codes) {
    return reinterpret_cast<Bytes>(
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), reinterpret_cast<__m512i>(codes)));
  }
};

// The keys' sums in order.
inline void store_sums(const Sums<Lanes512>& sums, uint16_t* out) {
  const auto even = reinterpret_cast<__m512i>(sums.even), odd = reinterpret_cast<__m512i>(sums.odd);
  const __m512i low = _mm512_unpacklo_epi16(even, odd);
  const __m512i high = _mm512_unpackhi_epi16(even, odd);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi64(low, first, high));
  _mm512_storeu_si512(out + 32, _mm512_permutex2var_epi64(low, second, high));
}

inline __m512i largest(const Sums<Lanes512>& sums) {
  return _mm512_max_epu16(reinterpret_cast<__m512i>(sums.even),
                          reinterpret_cast<__m512i>(sums.odd));
}

// The largest sums of each 16 keys, which lie in a quarter of a vector.
inline void store_tops(const Sums<Lanes512> (&sums)[kVectors], uint16_t* out) {
  static_assert(kVectors == 2);
  const __m512i a = largest(sums[0]);
  const __m512i b = largest(sums[1]);
  __m512i top = _mm512_max_epu16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  top = _mm512_max_epu16(top, _mm512_srli_epi64(top, 32));
  top = _mm512_max_epu16(top, _mm512_srli_epi64(top, 16));
  const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm512_cvtepi64_epi16(_mm512_permutexvar_epi64(in_order, top)));
}

struct Products {  // of a query with the centroids of a part
  __m512 values;

  static Products zero() { return {_mm512_setzero_ps()}; }
  void add(float q, const float* centroids) {
    values = _mm512_fmadd_ps(_mm512_set1_ps(q), _mm512_loadu_ps(centroids), values);
  }
  float lowest() const { return _mm512_reduce_min_ps(values); }
  float highest() const { return _mm512_reduce_max_ps(values); }
  void store(float low, float levels, uint8_t* entries) const {
    __m512 x = _mm512_fmadd_ps(_mm512_sub_ps(values, _mm512_set1_ps(low)), _mm512_set1_ps(levels),
                               _mm512_set1_ps(0.5f));
    // Of two NaN operands max gives the second, so entries of no number are 0.
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_setzero_ps()), _mm512_set1_ps(kLargestEntry));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(entries),
                     _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(x)));
  }
};

}  // namespace

void code_tables_avx512(const CodeTablesArgs& args) { fill_code_tables<Products>(args); }
void code_sums_avx512(const CodeSumsArgs& args) { all_sums<Lanes512, FetchRows, false>(args); }
void code_page_tops_avx512(const CodeSumsArgs& args) { all_sums<Lanes512, FetchRows, true>(args); }
void code_sums_avx512_beside_amx(const CodeSumsArgs& args) {
  all_sums<Lanes512, FetchInTurns, false>(args);
}
void code_page_tops_avx512_beside_amx(const CodeSumsArgs& args) {
  all_sums<Lanes512, FetchInTurns, true>(args);
}

void code_logits_avx512(const uint16_t* sums, size_t n, float low, float step, float* out) {
  const __m512 least = _mm512_set1_ps(low), level = _mm512_set1_ps(step);
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(static_cast<unsigned>(n - i));
    const __m512i sum = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, sums + i));
    _mm512_mask_storeu_ps(out + i, lanes, _mm512_fmadd_ps(level, _mm512_cvtepi32_ps(sum), least));
  }
}

}  // namespace reprise::kernels

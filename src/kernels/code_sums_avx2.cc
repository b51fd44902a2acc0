// Code sums with AVX2: as in code_sums_avx512.cc, 32 keys and one row at a time.
#include <immintrin.h>

#include "kernels/code_sums_isa.h"

namespace reprise::kernels {
namespace {

constexpr size_t kEntries = 32, kLanes = 32;

// Sums of 32 keys in 16 bits: those at even places and those at odd ones.
struct Sums {
  __m256i even, odd;
};

inline __m256i load_table(const uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}

inline Sums sum_keys(const CodeSumsArgs& args, size_t row, size_t first) {
  const __m256i low = _mm256_set1_epi8(15);
  const uint8_t* table = args.tables + row * args.planes * kEntries;
  Sums sums = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (size_t plane = 0; plane < args.planes; ++plane, table += kEntries) {
    const __m256i pair =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(args.codes[plane] + first));
    const __m256i first_codes = _mm256_and_si256(pair, low);
    const __m256i second_codes = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
    const __m256i both = _mm256_add_epi8(_mm256_shuffle_epi8(load_table(table), first_codes),
                                         _mm256_shuffle_epi8(load_table(table + 16), second_codes));
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

// The keys from `first` on, of a row, in the scalar kernel; `at` is where they begin in out.
template <class Kernel>
void rest(CodeSumsArgs args, size_t row, size_t first, size_t at, Kernel kernel) {
  const uint8_t* codes[256];
  for (size_t plane = 0; plane < args.planes; ++plane) codes[plane] = args.codes[plane] + first;
  args.codes = codes;
  args.keys -= first;
  args.tables += row * args.planes * kEntries;
  args.out += row * args.out_stride + at;
  args.rows = 1;
  kernel(args);
}

}  // namespace

void code_sums_avx2(const CodeSumsArgs& args) {
  const size_t whole = args.keys / kLanes * kLanes;
  for (size_t row = 0; row < args.rows; ++row) {
    uint16_t* out = args.out + row * args.out_stride;
    for (size_t key = 0; key < whole; key += kLanes) {
      store_sums(sum_keys(args, row, key), out + key);
    }
    rest(args, row, whole, whole, code_sums_ref);
  }
}

void code_page_tops_avx2(const CodeSumsArgs& args) {
  const size_t whole = args.keys / kLanes * kLanes;
  for (size_t row = 0; row < args.rows; ++row) {
    uint16_t* out = args.out + row * args.out_stride;
    for (size_t key = 0; key < whole; key += kLanes) {
      store_tops(sum_keys(args, row, key), out + key / 16);
    }
    rest(args, row, whole, whole / 16, code_page_tops_ref);
  }
}

}  // namespace reprise::kernels

// Code sums with AVX-512: byte shuffles look up 64 codes at once, and up to 4 rows share what
// unpacks them. The entries of both codes of a byte add up to at most 254, so bytes hold them.
#include "kernels/code_sums_isa.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kEntries = 32, kGroupRows = 4, kVectors = 2, kLanes = 64, kStep = 128;
constexpr size_t kAhead = 512;  // keys; planes are many short streams, which hardware follows late

// Sums of 64 keys in 16 bits: those at even places and those at odd ones.
struct Sums {
  __m512i even, odd;
};

inline __mmask64 lanes_below(size_t n) { return n >= kLanes ? ~0ull : (1ull << n) - 1; }

// Keys from `first` on; those past the end have codes 0.
template <int R>
inline void sum_keys(const CodeSumsArgs& args, size_t row, size_t first,
                     Sums (&sums)[R][kVectors]) {
  const __m512i low = _mm512_set1_epi8(15);
  const size_t left = args.keys - first;
  const __mmask64 lanes[kVectors] = {lanes_below(left),
                                     left > kLanes ? lanes_below(left - kLanes) : 0};
  for (int r = 0; r < R; ++r) {
    for (Sums& sum : sums[r]) sum = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  }
  for (size_t plane = 0; plane < args.planes; ++plane) {
    const uint8_t* codes = args.codes[plane] + first;
    __m512i first_codes[kVectors], second_codes[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      const __m512i pair = _mm512_maskz_loadu_epi8(lanes[v], codes + v * kLanes);
      __builtin_prefetch(codes + v * kLanes + kAhead);
      first_codes[v] = _mm512_and_si512(pair, low);
      second_codes[v] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
    }
    for (int r = 0; r < R; ++r) {
      const uint8_t* table = args.tables + ((row + r) * args.planes + plane) * kEntries;
      const __m512i first_table =
          _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
      const __m512i second_table =
          _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16)));
      for (size_t v = 0; v < kVectors; ++v) {
        const __m512i both = _mm512_add_epi8(_mm512_shuffle_epi8(first_table, first_codes[v]),
                                             _mm512_shuffle_epi8(second_table, second_codes[v]));
        Sums& sum = sums[r][v];
        sum.even = _mm512_add_epi16(sum.even, both);  // and 256 times the odd ones, modulo 2^16
        sum.odd = _mm512_add_epi16(sum.odd, _mm512_srli_epi16(both, 8));
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (Sums& sum : sums[r]) {
      sum.even = _mm512_sub_epi16(sum.even, _mm512_slli_epi16(sum.odd, 8));
    }
  }
}

// The keys' sums in order, n of them.
inline void store_sums(const Sums& sums, size_t n, uint16_t* out) {
  const __m512i low = _mm512_unpacklo_epi16(sums.even, sums.odd);
  const __m512i high = _mm512_unpackhi_epi16(sums.even, sums.odd);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __mmask64 lanes = lanes_below(n);
  _mm512_mask_storeu_epi16(out, static_cast<__mmask32>(lanes),
                           _mm512_permutex2var_epi64(low, first, high));
  _mm512_mask_storeu_epi16(out + 32, static_cast<__mmask32>(lanes >> 32),
                           _mm512_permutex2var_epi64(low, second, high));
}

// The largest sums of each 16 keys, n of the 4.
inline void store_tops(const Sums& sums, size_t n, uint16_t* out) {
  __m512i top = _mm512_max_epu16(sums.even, sums.odd);
  top = _mm512_max_epu16(top, _mm512_shuffle_epi32(top, static_cast<_MM_PERM_ENUM>(0x4e)));
  top = _mm512_max_epu16(top, _mm512_shuffle_epi32(top, static_cast<_MM_PERM_ENUM>(0xb1)));
  top = _mm512_max_epu16(top, _mm512_srli_epi32(top, 16));
  const __m512i firsts = _mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0);
  const __m256i words = _mm512_castsi512_si256(_mm512_permutexvar_epi64(firsts, top));
  _mm_mask_storeu_epi16(out, static_cast<__mmask8>((1u << n) - 1u), _mm256_cvtepi64_epi16(words));
}

template <int R, bool kTops>
void group_sums(const CodeSumsArgs& args, size_t row) {
  for (size_t first = 0; first < args.keys; first += kStep) {
    Sums sums[R][kVectors];
    sum_keys<R>(args, row, first, sums);
    for (int r = 0; r < R; ++r) {
      uint16_t* out = args.out + (row + r) * args.out_stride;
      for (size_t v = 0; v < kVectors; ++v) {
        const size_t at = first + v * kLanes;
        if (at >= args.keys) break;
        const size_t n = args.keys - at < kLanes ? args.keys - at : kLanes;
        if constexpr (kTops) {
          store_tops(sums[r][v], n / 16, out + at / 16);
        } else {
          store_sums(sums[r][v], n, out + at);
        }
      }
    }
  }
}

template <bool kTops>
void all_sums(const CodeSumsArgs& args) {
  size_t row = 0;
  for (; row + kGroupRows <= args.rows; row += kGroupRows) group_sums<kGroupRows, kTops>(args, row);
  switch (args.rows - row) {
    case 3:
      return group_sums<3, kTops>(args, row);
    case 2:
      return group_sums<2, kTops>(args, row);
    case 1:
      return group_sums<1, kTops>(args, row);
  }
}

}  // namespace

void code_sums_avx512(const CodeSumsArgs& args) { all_sums<false>(args); }
void code_page_tops_avx512(const CodeSumsArgs& args) { all_sums<true>(args); }

}  // namespace reprise::kernels

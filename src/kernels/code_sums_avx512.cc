// Code sums with AVX-512: byte shuffles look up 64 codes at once, and up to 4 rows share what
// unpacks them. The entries of both codes of a byte add up to at most 254, so bytes hold them, and
// those of several planes where tables are of less.
#include "kernels/code_sums_isa.h"
#include "kernels/code_tables.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 4, kVectors = 2, kLanes = 64, kStep = kVectors * kLanes;

// Sums of 64 keys in 16 bits: those at even places and those at odd ones.
struct Sums {
  __m512i even, odd;
};

inline unsigned largest_byte(__m128i bytes) {
  const __m128i words = _mm_max_epu8(bytes, _mm_srli_epi16(bytes, 8));  // in their low halves
  const __m128i rest = _mm_andnot_si128(words, _mm_set1_epi16(255));
  return 255u - static_cast<unsigned>(_mm_extract_epi16(_mm_minpos_epu16(rest), 0));
}

inline const uint8_t* table_of(const CodeSumsArgs& args, size_t row, size_t plane) {
  return args.tables + (row * args.planes + plane) * 2 * kCodeEntries;
}

inline __m128i load_entries(const uint8_t* table) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
}

// Used planes, cut where the largest entries of R rows may add up to more than a byte holds.
struct ByteGroups {
  size_t count = 0;
  size_t ends[kMostPlanes];
};

template <int R>
inline void group_planes(const CodeSumsArgs& args, size_t row, ByteGroups& groups) {
  unsigned sum = 0;
  for (size_t i = 0; i < args.used.size(); ++i) {
    __m128i first = _mm_setzero_si128(), second = first;
    for (int r = 0; r < R; ++r) {
      const uint8_t* table = table_of(args, row + static_cast<size_t>(r), args.used[i]);
      first = _mm_max_epu8(first, load_entries(table));
      second = _mm_max_epu8(second, load_entries(table + kCodeEntries));
    }
    const unsigned most = largest_byte(first) + largest_byte(second);
    if (i > 0 && sum + most > 255) {
      groups.ends[groups.count++] = i;
      sum = 0;
    }
    sum += most;
  }
  if (!args.used.empty()) groups.ends[groups.count++] = args.used.size();
}

// Adds the entries that 128 keys' codes of a plane name.
template <int R>
inline void add_entries(const CodeSumsArgs& args, size_t row, size_t plane, const uint8_t* codes,
                        const uint8_t* next, __m512i (&bytes)[R][kVectors]) {
  const __m512i low = _mm512_set1_epi8(15);
  __m512i first_codes[kVectors], second_codes[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t at = plane * args.stride + v * kLanes;
    const __m512i pair = _mm512_loadu_si512(codes + at);
    __builtin_prefetch(next + at, 0, 2);
    first_codes[v] = _mm512_and_si512(pair, low);
    second_codes[v] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
  }
  for (int r = 0; r < R; ++r) {
    const uint8_t* table = table_of(args, row + static_cast<size_t>(r), plane);
    const __m512i first_table = _mm512_broadcast_i32x4(load_entries(table));
    const __m512i second_table = _mm512_broadcast_i32x4(load_entries(table + kCodeEntries));
    for (size_t v = 0; v < kVectors; ++v) {
      const __m512i both = _mm512_add_epi8(_mm512_shuffle_epi8(first_table, first_codes[v]),
                                           _mm512_shuffle_epi8(second_table, second_codes[v]));
      bytes[r][v] = _mm512_add_epi8(bytes[r][v], both);
    }
  }
}

// codes: [planes][256] of a block, from one of its keys on; next: of one to fetch.
template <int R>
inline void sum_keys(const CodeSumsArgs& args, const ByteGroups& groups, size_t row,
                     const uint8_t* codes, const uint8_t* next, Sums (&sums)[R][kVectors]) {
  for (int r = 0; r < R; ++r) {
    for (Sums& sum : sums[r]) sum = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  }
  for (size_t group = 0, i = 0; group < groups.count; ++group) {
    __m512i bytes[R][kVectors];
    for (auto& of_row : bytes) {
      for (__m512i& sum : of_row) sum = _mm512_setzero_si512();
    }
    for (; i < groups.ends[group]; ++i) {
      add_entries<R>(args, row, args.used[i], codes, next, bytes);
    }
    for (int r = 0; r < R; ++r) {
      for (size_t v = 0; v < kVectors; ++v) {
        Sums& sum = sums[r][v];  // even: and 256 times the odd ones, modulo 2^16
        sum.even = _mm512_add_epi16(sum.even, bytes[r][v]);
        sum.odd = _mm512_add_epi16(sum.odd, _mm512_srli_epi16(bytes[r][v], 8));
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (Sums& sum : sums[r]) {
      sum.even = _mm512_sub_epi16(sum.even, _mm512_slli_epi16(sum.odd, 8));
    }
  }
}

// The keys' sums in order.
inline void store_sums(const Sums& sums, uint16_t* out) {
  const __m512i low = _mm512_unpacklo_epi16(sums.even, sums.odd);
  const __m512i high = _mm512_unpackhi_epi16(sums.even, sums.odd);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi64(low, first, high));
  _mm512_storeu_si512(out + 32, _mm512_permutex2var_epi64(low, second, high));
}

// The largest sums of each 16 keys, which lie in a quarter of a vector.
inline void store_tops(const Sums (&sums)[kVectors], uint16_t* out) {
  static_assert(kVectors == 2);
  const __m512i a = _mm512_max_epu16(sums[0].even, sums[0].odd);
  const __m512i b = _mm512_max_epu16(sums[1].even, sums[1].odd);
  __m512i top = _mm512_max_epu16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  top = _mm512_max_epu16(top, _mm512_srli_epi64(top, 32));
  top = _mm512_max_epu16(top, _mm512_srli_epi64(top, 16));
  const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm512_cvtepi64_epi16(_mm512_permutexvar_epi64(in_order, top)));
}

template <int R, bool kTops>
void group_sums(const CodeSumsArgs& args, size_t row) {
  ByteGroups groups;
  group_planes<R>(args, row, groups);
  for (size_t key = 0; key < args.blocks * kCodeBlock; key += kStep) {
    const size_t block = key / kCodeBlock, at = key % kCodeBlock;
    // Memory follows no stream from one page of it to the next.
    const size_t ahead =
        block + kBlocksAhead < args.blocks + args.next ? block + kBlocksAhead : block;
    Sums sums[R][kVectors];
    sum_keys<R>(args, groups, row, args.codes[block] + at, args.codes[ahead] + at, sums);
    for (int r = 0; r < R; ++r) {
      uint16_t* out = args.out + (row + r) * args.out_stride;
      if constexpr (kTops) {
        store_tops(sums[r], out + key / 16);
      } else {
        for (size_t v = 0; v < kVectors; ++v) store_sums(sums[r][v], out + key + v * kLanes);
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
void code_sums_avx512(const CodeSumsArgs& args) { all_sums<false>(args); }
void code_page_tops_avx512(const CodeSumsArgs& args) { all_sums<true>(args); }

void code_logits_avx512(const uint16_t* sums, size_t n, float low, float step, float* out) {
  const __m512 least = _mm512_set1_ps(low), level = _mm512_set1_ps(step);
  for (size_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first_lanes(static_cast<unsigned>(n - i));
    const __m512i sum = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, sums + i));
    _mm512_mask_storeu_ps(out + i, lanes, _mm512_fmadd_ps(level, _mm512_cvtepi32_ps(sum), least));
  }
}

}  // namespace reprise::kernels

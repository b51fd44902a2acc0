// Reads tiles of any type as vectors of floats with AVX-512. Everything is static: see
// simd_avx512.h.
#pragma once

#include "kernels/attention.h"
#include "kernels/bf12.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {

// Pairs of values: lanes (0, 1), (2, 3), ... belong together.
struct Pairs {
  __m512 low, high;  // pairs 0..7 and 8..15
};

static inline __m512 widen_bf16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

static inline __m512 widen_i8(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// N (1, 2 or 4) lines of 32 elements of a bf12 tile as bf16, without their scales. first: a
// multiple of 32.
template <int N>
[[gnu::always_inline]] static inline void load_bf12(const ConstBf12Tile& tile, size_t first,
                                                    __m512i (&lines)[N]) {
  const uint8_t *low = tile.low + first,
                *high = reinterpret_cast<const uint8_t*>(tile.high + first / 4);
  __m512i bytes[N], rest;
  if constexpr (N == 1) {
    bytes[0] = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)));
    rest = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(high)));
  } else if constexpr (N == 2) {
    bytes[0] = bytes[1] = _mm512_loadu_si512(low);
    rest = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)));
  } else {
    bytes[0] = bytes[1] = _mm512_loadu_si512(low);
    bytes[2] = bytes[3] = _mm512_loadu_si512(low + sizeof(__m512i));
    rest = _mm512_loadu_si512(high);
  }
  // Of every 64 bits the bytes of four elements, and twice the word that holds the rest of them.
  const __m512i words = _mm512_setr_epi64(
      0x4140'4140'0302'0100, 0x4342'4342'0706'0504, 0x4544'4544'0b0a'0908, 0x4746'4746'0f0e'0d0c,
      0x4948'4948'1312'1110, 0x4b4a'4b4a'1716'1514, 0x4d4c'4d4c'1b1a'1918, 0x4f4e'4f4e'1f1e'1d1c);
  // Where the 8 bits of their bytes begin: low, high, low, high.
  const __m512i begins = _mm512_set1_epi64(0x2c18'2810'2408'2000);
  const __m512i bits = _mm512_set1_epi16(static_cast<short>(kBf12Bits));
  const __m512i exponent = _mm512_set1_epi16(static_cast<short>(kBf12Exponent));
  for (int n = 0; n < N; ++n) {
    // Odd lines are the upper halves of bytes; of line n the rest is a quarter further.
    const long long further = n * 0x1010'1010'0000'0000 + n % 2 * 0x2020'2020;
    const __m512i index = _mm512_add_epi64(words, _mm512_set1_epi64(further));
    const __m512i four = _mm512_permutex2var_epi8(bytes[n], index, rest);
    const __m512i pairs = _mm512_multishift_epi64_epi8(begins, four);
    lines[n] = _mm512_ternarylogic_epi64(pairs, bits, exponent, 0xea);  // pairs & bits | exponent
  }
}

// Elements [first, first + 2 lanes) of a tile, for up to 16 pairs, without their scales.
template <KvType type>
static inline Pairs load_pairs(size_t head_dim, const std::byte* tile, size_t first,
                               unsigned pairs) {
  const __mmask32 lanes =
      pairs >= 16 ? ~static_cast<__mmask32>(0) : static_cast<__mmask32>((1ull << 2 * pairs) - 1);
  const auto low = static_cast<__mmask16>(lanes), high = static_cast<__mmask16>(lanes >> 16);
  if constexpr (type == KvType::kF32) {
    const auto* from = reinterpret_cast<const float*>(tile) + first;
    return {_mm512_maskz_loadu_ps(low, from), _mm512_maskz_loadu_ps(high, from + 16)};
  } else if constexpr (type == KvType::kQ8_0) {
    const __m256i bytes = _mm256_maskz_loadu_epi8(lanes, tile + first);
    return {widen_i8(_mm256_castsi256_si128(bytes)), widen_i8(_mm256_extracti128_si256(bytes, 1))};
  } else {
    __m512i halves[1];
    if constexpr (type == KvType::kBF12) {
      load_bf12(bf12_tile(tile, head_dim), first, halves);
    } else {
      halves[0] = _mm512_maskz_loadu_epi16(lanes, tile + 2 * first);
    }
    const __m256i a = _mm512_castsi512_si256(halves[0]);
    const __m256i b = _mm512_extracti64x4_epi64(halves[0], 1);
    if constexpr (type == KvType::kF16) return {_mm512_cvtph_ps(a), _mm512_cvtph_ps(b)};
    return {widen_bf16(a), widen_bf16(b)};
  }
}

// Angles of 8 tokens of one rotary pair, [slots][pairs][2] apart.
static inline __m512 load_angles(const float* cos_sin, size_t pairs) {
  const __m256i slots = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i index = _mm256_mullo_epi32(slots, _mm256_set1_epi32(static_cast<int>(pairs)));
  return _mm512_castpd_ps(_mm512_i32gather_pd(index, reinterpret_cast<const double*>(cos_sin), 8));
}

static inline __m512 rotate_pairs(__m512 x, __m512 angle) {
  const __m512 swapped = _mm512_permute_ps(x, 0xb1);
  return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(angle),
                            _mm512_mul_ps(swapped, _mm512_movehdup_ps(angle)));
}

// One pair of dims of the 16 tokens of a K tile, rotated if the page asks for it.
template <KvType type>
static inline Pairs load_k_row(size_t head_dim, size_t rope_pairs, const PageSpan& page,
                               size_t pair) {
  Pairs row = load_pairs<type>(head_dim, page.k, pair * 2 * kPageTokens, 16);
  if constexpr (has_scales(type)) {
    const __m512 scale = _mm512_loadu_ps(tile_scales(type, head_dim, page.k, 2 * pair));
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i upper = _mm512_add_epi32(twice, _mm512_set1_epi32(8));
    row.low = _mm512_mul_ps(row.low, _mm512_permutexvar_ps(twice, scale));
    row.high = _mm512_mul_ps(row.high, _mm512_permutexvar_ps(upper, scale));
  }
  if (page.cos_sin != nullptr && pair < rope_pairs) {
    const float* angles = page.cos_sin + 2 * pair;
    row.low = rotate_pairs(row.low, load_angles(angles, rope_pairs));
    row.high = rotate_pairs(row.high, load_angles(angles + 16 * rope_pairs, rope_pairs));
  }
  return row;
}

// First and second members of 16 pairs.
static inline __m512 firsts(Pairs row) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_ps(row.low, even, row.high);
}

static inline __m512 seconds(Pairs row) {
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutex2var_ps(row.low, odd, row.high);
}

}  // namespace reprise::kernels

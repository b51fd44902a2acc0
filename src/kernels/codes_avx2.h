// Unpacks codes and scales of half a panel (8 rows); included by *_avx2.cc only.
#pragma once

#include <bit>

#include "kernels/avx2.h"
#include "kernels/packed_layout.h"

namespace reprise::kernels {
namespace {

inline __m256i load_register(const std::byte* plane, size_t index) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(plane + 64 * index));
}

// ((plane >> from) & mask) << to, in every byte. Intrinsics would need constants for the shifts,
// which compilers for AArch64 do not see here.
inline __m256i take_bits(__m256i plane, int from, int to, int mask) {
  using Words = uint16_t __attribute__((vector_size(32)));
  const auto moved = std::bit_cast<__m256i>(std::bit_cast<Words>(plane) >> from);
  const __m256i low = _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(mask)));
  return std::bit_cast<__m256i>(std::bit_cast<Words>(low) << to);
}

/// Byte 4r + c of word j of a block is the code (or IQ4_NL's value) of row r, column 4j + c. plane
/// points at the half's first byte.
template <TensorType kType>
[[gnu::always_inline]] inline __m256i load_word(const std::byte* plane, size_t j) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  if constexpr (kFormat.bits == 8) return load_register(plane, j);
  constexpr int kPairs = kFormat.bits & 4, kOnes = kFormat.bits & 6;
  __m256i word = _mm256_setzero_si256();
  if constexpr (kFormat.bits & 4) {
    word = take_bits(load_register(plane, j % 4), j < 4 ? 0 : 4, 0, 15);
  }
  if constexpr (kFormat.bits & 2) {
    const __m256i pairs = load_register(plane + 64 * kPairs, j / 4);
    word = _mm256_or_si256(word, take_bits(pairs, static_cast<int>(j % 4 * 2), kPairs, 3));
  }
  if constexpr (kFormat.bits & 1) {
    const __m256i ones = load_register(plane + 64 * kOnes, 0);
    word = _mm256_or_si256(word, take_bits(ones, static_cast<int>(j), kOnes, 1));
  }
  if constexpr (kFormat.lookup) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values)));
    word = _mm256_shuffle_epi8(table, word);
  }
  return word;
}

/// All words of a block.
template <TensorType kType>
[[gnu::always_inline]] inline void load_codes(const std::byte* plane, __m256i codes[8]) {
#pragma GCC unroll 8
  for (size_t j = 0; j < 8; ++j) codes[j] = load_word<kType>(plane, j);
}

inline __m256 load_halves(const std::byte* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

inline __m256 load_unsigned(const std::byte* at) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}

inline __m256 load_signed(const std::byte* at) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}

struct Scale8 {
  __m256 scale, min;  // min is zero where the type has none
};

/// Scales of group g of a block for rows 8 half to 8 half + 7.
template <TensorType kType>
inline Scale8 load_scale(const std::byte* panel, size_t block, size_t g, size_t half) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  constexpr size_t kKinds = kFormat.has_min ? 2 : 1;
  const std::byte* at = panel + (kFormat.super ? block / 8 : block) * scale_bytes(kFormat);
  const __m256 d = load_halves(at + 16 * half);
  __m256 min = _mm256_setzero_ps();
  if constexpr (kFormat.has_min) min = load_halves(at + 32 + 16 * half);
  if constexpr (!kFormat.super) return {d, min};
  const std::byte* integers = at + 32 * kKinds + 8 * half;
  g += block % 8 * (kBlockCols / kFormat.group);
  __m256 scale, min_scale = _mm256_setzero_ps();
  if constexpr (kFormat.bits == 2) {
    const __m256i both = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(integers + g * kPanelRows)));
    scale = _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15)));
    min_scale = _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4));
  } else {
    integers += g * kKinds * kPanelRows;
    scale = load_signed(integers);
    if constexpr (kFormat.has_min) min_scale = load_unsigned(integers + kPanelRows);
  }
  return {_mm256_mul_ps(d, scale),
          _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(min, min_scale))};
}

}  // namespace
}  // namespace reprise::kernels

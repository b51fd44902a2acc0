// Unpacks codes and scales of a panel; included by *_avx512.cc only.
#pragma once

#include <immintrin.h>

#include "kernels/packed_layout.h"

namespace reprise::kernels {
namespace {

inline __m512i load_register(const std::byte* plane, size_t index) {
  return _mm512_load_si512(plane + 64 * index);
}

// Moves bits [from, from + count) of every byte to [to, to + count); other bits become garbage.
template <int kFrom, int kTo>
inline __m512i move_bits(__m512i bytes) {
  if constexpr (kFrom > kTo) return _mm512_srli_epi16(bytes, kFrom - kTo);
  if constexpr (kFrom < kTo) return _mm512_slli_epi16(bytes, kTo - kFrom);
  return bytes;
}

// code | (moved & mask)
template <int kFrom, int kTo>
inline __m512i merge_bits(__m512i code, __m512i plane, int mask) {
  constexpr int kOrAnd = 0xf8;
  const __m512i moved = move_bits<kFrom, kTo>(plane);
  const __m512i bits = _mm512_set1_epi8(static_cast<char>(mask << kTo));
  return _mm512_ternarylogic_epi32(code, moved, bits, kOrAnd);
}

inline void load_nibbles(const std::byte* plane, __m512i codes[8]) {
  const __m512i low = _mm512_set1_epi8(15);
  for (size_t i = 0; i < 4; ++i) {
    const __m512i both = load_register(plane, i);
    codes[i] = _mm512_and_si512(both, low);
    codes[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  }
}

template <int kTo>
inline void merge_pairs(const std::byte* plane, __m512i codes[8]) {
  for (size_t i = 0; i < 2; ++i) {
    const __m512i four = load_register(plane, i);
    codes[4 * i + 0] = merge_bits<0, kTo>(codes[4 * i + 0], four, 3);
    codes[4 * i + 1] = merge_bits<2, kTo>(codes[4 * i + 1], four, 3);
    codes[4 * i + 2] = merge_bits<4, kTo>(codes[4 * i + 2], four, 3);
    codes[4 * i + 3] = merge_bits<6, kTo>(codes[4 * i + 3], four, 3);
  }
}

template <int kTo>
inline void merge_ones(const std::byte* plane, __m512i codes[8]) {
  const __m512i eight = load_register(plane, 0);
  codes[0] = merge_bits<0, kTo>(codes[0], eight, 1);
  codes[1] = merge_bits<1, kTo>(codes[1], eight, 1);
  codes[2] = merge_bits<2, kTo>(codes[2], eight, 1);
  codes[3] = merge_bits<3, kTo>(codes[3], eight, 1);
  codes[4] = merge_bits<4, kTo>(codes[4], eight, 1);
  codes[5] = merge_bits<5, kTo>(codes[5], eight, 1);
  codes[6] = merge_bits<6, kTo>(codes[6], eight, 1);
  codes[7] = merge_bits<7, kTo>(codes[7], eight, 1);
}

/// Byte 4r + c of codes[j] is the code (or IQ4_NL's value) of row r, column 4j + c.
template <TensorType kType>
inline void load_codes(const std::byte* plane, __m512i codes[8]) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  if constexpr (kFormat.bits == 8) {
    for (size_t j = 0; j < 8; ++j) codes[j] = load_register(plane, j);
    return;
  }
  if constexpr (kFormat.bits & 4) {
    load_nibbles(plane, codes);
  } else {
    for (size_t j = 0; j < 8; ++j) codes[j] = _mm512_setzero_si512();
  }
  constexpr int kPairs = kFormat.bits & 4, kOnes = kFormat.bits & 6;
  if constexpr (kFormat.bits & 2) merge_pairs<kPairs>(plane + 64 * kPairs, codes);
  if constexpr (kFormat.bits & 1) merge_ones<kOnes>(plane + 64 * kOnes, codes);
  if constexpr (kFormat.lookup) {
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values)));
    for (size_t j = 0; j < 8; ++j) codes[j] = _mm512_shuffle_epi8(table, codes[j]);
  }
}

inline __m512 load_halves(const std::byte* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

inline __m512i load_bytes(const std::byte* at) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

/// Scales and minima of 16 rows, block after block.
template <TensorType kType>
class ScaleReader {
  static constexpr QuantFormat kFormat = *quant_format(kType);
  static constexpr size_t kKinds = kFormat.has_min ? 2 : 1;

 public:
  /// Number of scales a block has.
  static constexpr size_t kGroups = kBlockCols / kFormat.group;

  ScaleReader(const std::byte* panel, size_t block) {
    if constexpr (kFormat.super) {
      at_ = panel + block / 8 * scale_bytes(kFormat);
      part_ = block % 8;
      load_super();
    } else {
      at_ = panel + block * scale_bytes(kFormat);
    }
  }

  /// Reads the next block's scales [kGroups]; min is left alone where the type has none.
  void next(__m512 scale[], __m512 min[]) {
    if constexpr (!kFormat.super) {
      scale[0] = load_halves(at_);
      if constexpr (kFormat.has_min) min[0] = load_halves(at_ + 32);
      at_ += scale_bytes(kFormat);
    } else {
      for (size_t g = 0; g < kGroups; ++g) next_group(part_ * kGroups + g, scale[g], min[g]);
      if (++part_ == 8) {
        part_ = 0;
        at_ += scale_bytes(kFormat);
        load_super();
      }
    }
  }

 private:
  void load_super() {
    d_ = load_halves(at_);
    if constexpr (kFormat.has_min) d_min_ = load_halves(at_ + 32);
  }

  void next_group(size_t g, __m512& scale, __m512& min) const {
    const std::byte* integers = at_ + 32 * kKinds;
    if constexpr (kFormat.bits == 2) {
      const __m512i both = load_bytes(integers + g * kPanelRows);
      const __m512i low = _mm512_and_si512(both, _mm512_set1_epi32(15));
      scale = _mm512_mul_ps(d_, _mm512_cvtepi32_ps(low));
      const __m512 high = _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4));
      min = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(d_min_, high));
    } else {
      integers += g * kKinds * kPanelRows;
      const __m512i signed_scale =
          _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(integers)));
      scale = _mm512_mul_ps(d_, _mm512_cvtepi32_ps(signed_scale));
      if constexpr (kFormat.has_min) {
        const __m512 factor = _mm512_cvtepi32_ps(load_bytes(integers + kPanelRows));
        min = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(d_min_, factor));
      }
    }
  }

  const std::byte* at_ = nullptr;
  size_t part_ = 0;
  __m512 d_, d_min_;
};

}  // namespace
}  // namespace reprise::kernels

// Reads K and V tiles of any type as vectors of floats with AVX2. Everything is static: see
// simd_avx2.h.
#pragma once

#include "kernels/attention.h"
#include "kernels/bf12.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {

// Members of 8 pairs.
struct PairVectors {
  __m256 first, second;
};

// Members of the pairs (low 0, 1), (low 2, 3), ..., (high 6, 7).
static inline PairVectors split_pairs(__m256 low, __m256 high) {
  const __m256 even = _mm256_shuffle_ps(low, high, 0x88), odd = _mm256_shuffle_ps(low, high, 0xdd);
  return {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8)),
          _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8))};
}

static inline __m256 widen_i8_256(const std::byte* bytes) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
}

// 16 elements of a bf12 tile as bf16, without their scales. first: a multiple of 16.
static inline __m256i load_bf12(const ConstBf12Tile& tile, size_t first) {
  const auto* low = reinterpret_cast<const __m128i*>(tile.low + first);
  const auto* high = reinterpret_cast<const double*>(tile.high + first / 4);
  // Each word four times, turned to the right by 0, 4, 8 and 12 bits.
  const __m256i four = _mm256_castpd_si256(_mm256_broadcast_sd(high));
  const __m256i spread = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5, 4,
                                          5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7);
  const __m256i words = _mm256_shuffle_epi8(four, spread);
  const __m256i turn = _mm256_set1_epi64x(0x0010'0100'1000'0001);
  const __m256i upper =
      _mm256_or_si256(_mm256_mullo_epi16(words, turn), _mm256_mulhi_epu16(words, turn));
  const __m256i bits =
      _mm256_or_si256(_mm256_slli_epi16(upper, 8), _mm256_cvtepu8_epi16(_mm_loadu_si128(low)));
  return _mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi16(static_cast<short>(kBf12Bits))),
                         _mm256_set1_epi16(static_cast<short>(kBf12Exponent)));
}

// 8 pairs from element `first` of a tile, without their scales.
template <KvType type>
static inline PairVectors load_pairs(size_t head_dim, const std::byte* tile, size_t first) {
  if constexpr (type == KvType::kBF16 || type == KvType::kBF12) {
    __m256i pairs;
    if constexpr (type == KvType::kBF12) {
      pairs = load_bf12(bf12_tile(tile, head_dim), first);
    } else {
      pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + first * sizeof(uint16_t)));
    }
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, upper))};
  } else if constexpr (type == KvType::kF16) {
    const auto* halves = reinterpret_cast<const __m128i*>(tile + first * sizeof(uint16_t));
    return split_pairs(_mm256_cvtph_ps(_mm_loadu_si128(halves)),
                       _mm256_cvtph_ps(_mm_loadu_si128(halves + 1)));
  } else if constexpr (type == KvType::kF32) {
    const auto* floats = reinterpret_cast<const float*>(tile) + first;
    return split_pairs(_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8));
  } else {
    return split_pairs(widen_i8_256(tile + first), widen_i8_256(tile + first + 8));
  }
}

// The cosine and sine of one rotary pair for 8 tokens, stride floats apart. Gathers would load each
// of them by itself.
static inline PairVectors load_angles(const float* first, size_t stride) {
  const auto two = [&](size_t token) {
    const float* at = first + token * stride;
    const __m128d one = _mm_load_sd(reinterpret_cast<const double*>(at));
    return _mm_castpd_ps(_mm_loadh_pd(one, reinterpret_cast<const double*>(at + stride)));
  };
  return split_pairs(_mm256_set_m128(two(2), two(0)), _mm256_set_m128(two(6), two(4)));
}

// Dims 2 pair and 2 pair + 1 of 8 tokens from `token`, rotated if the page asks for it, and rounded
// as rope() rounds.
// kRotates: it may.
template <KvType type, bool kRotates = true>
static inline PairVectors load_k_pair(size_t head_dim, size_t rope_pairs, const PageSpan& page,
                                      size_t pair, size_t token) {
  PairVectors k = load_pairs<type>(head_dim, page.k, 2 * (pair * kPageTokens + token));
  if constexpr (has_scales(type)) {
    const __m256 scale = _mm256_loadu_ps(tile_scales(type, head_dim, page.k, 2 * pair) + token);
    k = {_mm256_mul_ps(k.first, scale), _mm256_mul_ps(k.second, scale)};
  }
  if (!kRotates || page.cos_sin == nullptr || pair >= rope_pairs) return k;
  const size_t stride = 2 * rope_pairs;
  const auto [cos, sin] = load_angles(page.cos_sin + token * stride + 2 * pair, stride);
  return {_mm256_fmsub_ps(k.first, cos, _mm256_mul_ps(k.second, sin)),
          _mm256_fmadd_ps(k.second, cos, _mm256_mul_ps(k.first, sin))};
}

// Tokens 2 pair and 2 pair + 1 of dims [dim, dim + 8), zero beyond head_dim. kWhole: none are.
template <KvType type, bool kWhole>
static inline PairVectors load_v_pair(size_t head_dim, const std::byte* tile, size_t pair,
                                      size_t dim) {
  const size_t element = 2 * (pair * head_dim + dim);
  PairVectors v;
  if (kWhole || has_scales(type) || dim + 8 <= head_dim) {  // scales need whole vectors
    v = load_pairs<type>(head_dim, tile, element);
  } else {
    constexpr size_t kElement = type == KvType::kF32 ? sizeof(float) : sizeof(uint16_t);
    std::byte rest[16 * sizeof(float)] = {};
    if (dim < head_dim) {
      __builtin_memcpy(rest, tile + element * kElement, 2 * (head_dim - dim) * kElement);
    }
    v = load_pairs<type>(head_dim, rest, 0);
  }
  if constexpr (has_scales(type)) {
    const float* scale = tile_scales(type, head_dim, tile, dim) + 2 * pair;
    v = {_mm256_mul_ps(v.first, _mm256_set1_ps(scale[0])),
         _mm256_mul_ps(v.second, _mm256_set1_ps(scale[1]))};
  }
  return v;
}

// sums[r] += a[r][0] first + a[r][1] second, of 16 lanes.
template <int R>
static inline void add_products(__m256 (&sums)[R][2], const float* a, size_t stride,
                                const PairVectors& low, const PairVectors& high) {
  unrolled<R>([&]<int r>() __attribute__((always_inline)) {
    const __m256 first = _mm256_broadcast_ss(a + r * stride);
    const __m256 second = _mm256_broadcast_ss(a + r * stride + 1);
    sums[r][0] = _mm256_fmadd_ps(first, low.first, sums[r][0]);
    sums[r][1] = _mm256_fmadd_ps(first, high.first, sums[r][1]);
    sums[r][0] = _mm256_fmadd_ps(second, low.second, sums[r][0]);
    sums[r][1] = _mm256_fmadd_ps(second, high.second, sums[r][1]);
  });
}

}  // namespace reprise::kernels

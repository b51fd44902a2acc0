#include "kernels/attention_tiles.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kQ8Block = 32;  // dims that share a scale

// Pairs of values: lanes (0, 1), (2, 3), ... belong together.
struct Pairs {
  __m512 low, high;  // pairs 0..7 and 8..15
};

inline __m512 widen_bf16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline __m512 widen_i8(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }

// Elements [first, first + 2 lanes) of a tile, for up to 16 pairs; q8_0 without its scale.
template <KvType type>
inline Pairs load_pairs(const std::byte* tile, size_t first, unsigned pairs) {
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
    const __m512i halves = _mm512_maskz_loadu_epi16(lanes, tile + 2 * first);
    const __m256i a = _mm512_castsi512_si256(halves), b = _mm512_extracti64x4_epi64(halves, 1);
    if constexpr (type == KvType::kF16) return {_mm512_cvtph_ps(a), _mm512_cvtph_ps(b)};
    return {widen_bf16(a), widen_bf16(b)};
  }
}

template <KvType type>
inline const float* scales(const AttendArgs& args, const std::byte* tile, size_t dim) {
  const size_t head_dim = args.layout->head_dim;
  return reinterpret_cast<const float*>(tile + kPageTokens * head_dim) +
         dim / kQ8Block * kPageTokens;
}

// Angles of 8 tokens of one rotary pair, [slots][pairs][2] apart.
inline __m512 load_angles(const float* cos_sin, size_t pairs) {
  const __m256i slots = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i index = _mm256_mullo_epi32(slots, _mm256_set1_epi32(static_cast<int>(pairs)));
  return _mm512_castpd_ps(_mm512_i32gather_pd(index, reinterpret_cast<const double*>(cos_sin), 8));
}

inline __m512 rotate(__m512 x, __m512 angle) {
  const __m512 swapped = _mm512_permute_ps(x, 0xb1);
  return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(angle),
                            _mm512_mul_ps(swapped, _mm512_movehdup_ps(angle)));
}

// Calls sink(pair, Pairs of 16 tokens) for every pair of dims of a K tile.
template <KvType type, typename Sink>
inline void each_k_row(const AttendArgs& args, const PageSpan& page, Sink sink) {
  const size_t pairs = args.layout->head_dim / 2;
  for (size_t pair = 0; pair < pairs; ++pair) {
    Pairs row = load_pairs<type>(page.k, pair * 2 * kPageTokens, 16);
    if constexpr (type == KvType::kQ8_0) {
      const __m512 scale = _mm512_loadu_ps(scales<type>(args, page.k, 2 * pair));
      const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
      const __m512i upper = _mm512_add_epi32(twice, _mm512_set1_epi32(8));
      row.low = _mm512_mul_ps(row.low, _mm512_permutexvar_ps(twice, scale));
      row.high = _mm512_mul_ps(row.high, _mm512_permutexvar_ps(upper, scale));
    }
    if (page.cos_sin != nullptr && pair < args.rope_pairs) {
      const float* angles = page.cos_sin + 2 * pair;
      row.low = rotate(row.low, load_angles(angles, args.rope_pairs));
      row.high = rotate(row.high, load_angles(angles + 16 * args.rope_pairs, args.rope_pairs));
    }
    sink(pair, row);
  }
}

// Calls sink(token pair, dim, lanes, Pairs of up to 16 dims) over a V tile.
template <KvType type, typename Sink>
inline void each_v_row(const AttendArgs& args, const PageSpan& page, Sink sink) {
  const size_t head_dim = args.layout->head_dim;
  for (size_t pair = 0; pair < kPageTokens / 2; ++pair) {
    for (size_t dim = 0; dim < head_dim; dim += 16) {
      const auto left = static_cast<unsigned>(head_dim - dim);
      Pairs row = load_pairs<type>(page.v, 2 * (pair * head_dim + dim), left < 16 ? left : 16);
      if constexpr (type == KvType::kQ8_0) {
        const auto* scale = reinterpret_cast<const double*>(scales<type>(args, page.v, dim));
        const __m512 both = _mm512_castpd_ps(_mm512_set1_pd(scale[pair]));
        row.low = _mm512_mul_ps(row.low, both);
        row.high = _mm512_mul_ps(row.high, both);
      }
      sink(pair, dim, first_lanes(left), row);
    }
  }
}

inline __m512i pack(Pairs row) {
  const __m512bh packed = _mm512_cvtne2ps_pbh(row.high, row.low);
  return (__m512i)packed;
}

// First and second members of 16 pairs.
inline __m512 firsts(Pairs row) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_ps(row.low, even, row.high);
}

inline __m512 seconds(Pairs row) {
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutex2var_ps(row.low, odd, row.high);
}

template <KvType type>
void bf16_k_tile(const AttendArgs& args, const PageSpan& page, uint32_t* out) {
  each_k_row<type>(args, page, [&](size_t pair, Pairs row) {
    _mm512_storeu_si512(out + pair * kPageTokens, pack(row));
  });
}

template <KvType type>
void bf16_v_tile(const AttendArgs& args, const PageSpan& page, uint32_t* out, size_t stride) {
  each_v_row<type>(args, page, [&](size_t pair, size_t dim, __mmask16 lanes, Pairs row) {
    _mm512_mask_storeu_epi32(out + pair * stride + dim, lanes, pack(row));
  });
}

template <KvType type>
void float_k_tile(const AttendArgs& args, const PageSpan& page, float* out) {
  each_k_row<type>(args, page, [&](size_t pair, Pairs row) {
    _mm512_storeu_ps(out + 2 * pair * kPageTokens, firsts(row));
    _mm512_storeu_ps(out + (2 * pair + 1) * kPageTokens, seconds(row));
  });
}

template <KvType type>
void float_v_tile(const AttendArgs& args, const PageSpan& page, float* out, size_t stride) {
  each_v_row<type>(args, page, [&](size_t pair, size_t dim, __mmask16 lanes, Pairs row) {
    _mm512_mask_storeu_ps(out + 2 * pair * stride + dim, lanes, firsts(row));
    _mm512_mask_storeu_ps(out + (2 * pair + 1) * stride + dim, lanes, seconds(row));
  });
}

}  // namespace

void bf16_k_tile_avx512(const AttendArgs& args, const PageSpan& page, uint32_t* out) {
  if (args.layout->type == KvType::kQ8_0) return bf16_k_tile<KvType::kQ8_0>(args, page, out);
  bf16_k_tile<KvType::kBF16>(args, page, out);
}

void bf16_v_tile_avx512(const AttendArgs& args, const PageSpan& page, uint32_t* out,
                        size_t stride) {
  if (args.layout->type == KvType::kQ8_0) {
    return bf16_v_tile<KvType::kQ8_0>(args, page, out, stride);
  }
  bf16_v_tile<KvType::kBF16>(args, page, out, stride);
}

void float_k_tile_avx512(const AttendArgs& args, const PageSpan& page, float* out) {
  if (args.layout->type == KvType::kF16) return float_k_tile<KvType::kF16>(args, page, out);
  float_k_tile<KvType::kF32>(args, page, out);
}

void float_v_tile_avx512(const AttendArgs& args, const PageSpan& page, float* out, size_t stride) {
  if (args.layout->type == KvType::kF16) {
    return float_v_tile<KvType::kF16>(args, page, out, stride);
  }
  float_v_tile<KvType::kF32>(args, page, out, stride);
}

}  // namespace reprise::kernels

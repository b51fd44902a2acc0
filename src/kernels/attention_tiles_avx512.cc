#include "kernels/attention_tiles.h"
#include "kernels/tile_avx512.h"

namespace reprise::kernels {
namespace {

// Calls sink(pair, Pairs of 16 tokens) for every pair of dims of a K tile.
template <KvType type, typename Sink>
inline void each_k_row(const AttendArgs& args, const PageSpan& page, Sink sink) {
  const size_t head_dim = args.layout->head_dim;
  for (size_t pair = 0; pair < head_dim / 2; ++pair) {
    sink(pair, load_k_row<type>(head_dim, args.rope_pairs, page, pair));
  }
}

// Calls sink(token pair, dim, lanes, Pairs of up to 16 dims) over a V tile.
template <KvType type, typename Sink>
inline void each_v_row(const AttendArgs& args, const PageSpan& page, Sink sink) {
  const size_t head_dim = args.layout->head_dim;
  for (size_t pair = 0; pair < kPageTokens / 2; ++pair) {
    for (size_t dim = 0; dim < head_dim; dim += 16) {
      const auto left = static_cast<unsigned>(head_dim - dim);
      const size_t first = 2 * (pair * head_dim + dim);
      Pairs row = load_pairs<type>(head_dim, page.v, first, left < 16 ? left : 16);
      if constexpr (has_scales(type)) {
        const float* of_tokens = tile_scales(type, head_dim, page.v, dim);
        const auto* scale = reinterpret_cast<const double*>(of_tokens);
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

// What the scales of two tokens, powers of two, do to the bits of elements of bf12 side by side.
// No exponent leaves its range: see bf12_base().
struct Exponents {
  __m512i added, kept;

  // bits: of the scales as floats, or 0.
  static Exponents of(__m512i bits) {
    const __m512i none = _mm512_setzero_si512(), ones = _mm512_set1_epi16(-1);
    const __mmask32 scaled = _mm512_cmpneq_epi16_mask(bits, none);
    return {_mm512_sub_epi16(bits, _mm512_set1_epi16(0x3f80)),
            _mm512_maskz_mov_epi16(scaled, ones)};
  }
  __m512i scale(__m512i elements) const {
    return _mm512_and_si512(_mm512_add_epi16(elements, added), kept);
  }
};

// Without a rotation, whole registers of elements at a time. They stay exact.
void bf12_k_tile(size_t head_dim, const std::byte* k_tile, uint32_t* out) {
  const ConstBf12Tile tile = bf12_tile(k_tile, head_dim);
  const __m512i bits = _mm512_loadu_si512(tile.scales);
  const auto exponents = Exponents::of(_mm512_or_si512(bits, _mm512_srli_epi32(bits, 16)));
  for (size_t pair = 0; pair < head_dim / 2; pair += 4) {
    __m512i lines[4];
    load_bf12(tile, pair * 2 * kPageTokens, lines);
    for (size_t i = 0; i < 4; ++i) {
      _mm512_storeu_si512(out + (pair + i) * kPageTokens, exponents.scale(lines[i]));
    }
  }
}

void bf12_v_tile(size_t head_dim, const std::byte* v_tile, uint32_t* out, size_t stride) {
  const ConstBf12Tile tile = bf12_tile(v_tile, head_dim);
  for (size_t pair = 0; pair < kPageTokens / 2; ++pair, out += stride) {
    uint32_t bits[2];
    __builtin_memcpy(bits, tile.scales + 2 * pair, sizeof bits);
    const auto both = static_cast<int>(bits[1] | bits[0] >> 16);
    const auto exponents = Exponents::of(_mm512_set1_epi32(both));
    for (size_t dim = 0; dim < head_dim; dim += 32) {
      __m512i lines[2];
      load_bf12(tile, 2 * (pair * head_dim + dim), lines);
      _mm512_storeu_si512(out + dim, exponents.scale(lines[0]));
      _mm512_storeu_si512(out + dim + 16, exponents.scale(lines[1]));
    }
  }
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
  const KvLayout& layout = *args.layout;
  if (layout.type == KvType::kQ8_0) return bf16_k_tile<KvType::kQ8_0>(args, page, out);
  if (layout.type == KvType::kBF16) return bf16_k_tile<KvType::kBF16>(args, page, out);
  if (page.cos_sin != nullptr) return bf16_k_tile<KvType::kBF12>(args, page, out);
  bf12_k_tile(layout.head_dim, page.k, out);
}

void bf16_v_tile_avx512(const AttendArgs& args, const PageSpan& page, uint32_t* out,
                        size_t stride) {
  const KvLayout& layout = *args.layout;
  if (layout.type == KvType::kQ8_0) return bf16_v_tile<KvType::kQ8_0>(args, page, out, stride);
  if (layout.type == KvType::kBF16) return bf16_v_tile<KvType::kBF16>(args, page, out, stride);
  bf12_v_tile(layout.head_dim, page.v, out, stride);
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

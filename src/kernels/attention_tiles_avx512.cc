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
      Pairs row = load_pairs<type>(page.v, 2 * (pair * head_dim + dim), left < 16 ? left : 16);
      if constexpr (type == KvType::kQ8_0) {
        const auto* scale = reinterpret_cast<const double*>(q8_scales(head_dim, page.v, dim));
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

// Rows of q times K tiles of any type in floats, with AVX-512. Everything is static: see
// simd_avx512.h.
#pragma once

#include "kernels/attention_decode.h"
#include "kernels/tile_avx512.h"

namespace reprise::kernels {

// Two floats, side by side in every pair of lanes.
static inline __m512 broadcast_pair(const float* from) {
  return _mm512_castpd_ps(_mm512_set1_pd(*reinterpret_cast<const double*>(from)));
}

// logits[r] of R rows of q [head_dim] and the 16 tokens of a K tile, rotated if the page asks for
// it. Lanes sum even and odd dims apart until the end.
template <KvType type, int R, bool kRotated>
[[gnu::always_inline]] static inline void score_floats(const AttendArgs& args, const float* q,
                                                       size_t head_dim, const PageSpan& page,
                                                       const Ahead& ahead, __m512 (&logits)[R]) {
  const size_t pair_bytes = tile_bytes(type, head_dim) / (head_dim / 2);
  Pairs sums[R];
  for (Pairs& sum : sums) sum = {_mm512_setzero_ps(), _mm512_setzero_ps()};
#pragma GCC unroll 2
  for (size_t pair = 0; pair < head_dim / 2; ++pair) {
    ahead.fetch(Ahead::kKeys, pair, pair_bytes);
    Pairs keys;
    if constexpr (kRotated) {
      keys = load_k_row<type>(head_dim, args.rope_pairs, page, pair);
    } else {
      keys = load_pairs<type>(head_dim, page.k, pair * 2 * kPageTokens, kPageTokens);
    }
    for (int r = 0; r < R; ++r) {
      const __m512 query = broadcast_pair(q + static_cast<size_t>(r) * head_dim + 2 * pair);
      sums[r].low = _mm512_fmadd_ps(query, keys.low, sums[r].low);
      sums[r].high = _mm512_fmadd_ps(query, keys.high, sums[r].high);
    }
  }
  for (int r = 0; r < R; ++r) logits[r] = _mm512_add_ps(firsts(sums[r]), seconds(sums[r]));
}

}  // namespace reprise::kernels

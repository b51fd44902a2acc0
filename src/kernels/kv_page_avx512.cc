#include "kernels/kv_page_isa.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kLanes = 16;

// Rounded to bf16 as to_bf16() does, in the upper halves; the lower ones mean nothing.
inline __m512i rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
}

// Pairs of bf16: the upper halves of low become the lower ones.
inline __m512i paired(__m512i low, __m512i high) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
}

// The bf16 pairs of 32 values of a row.
inline __m512i pairs_of_row(const float* from) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512i first = rounded(_mm512_loadu_ps(from));
  const __m512i second = rounded(_mm512_loadu_ps(from + kLanes));
  return paired(_mm512_permutex2var_epi32(first, even, second),
                _mm512_permutex2var_epi32(first, odd, second));
}

// Values as they are stored: finite, see kv_page.cc.
inline __m512i rounded_values(const float* from) {
  const __m512 most = _mm512_set1_ps(0x1.fep127f), least = _mm512_set1_ps(-0x1.fep127f);
  const __m512 x = _mm512_loadu_ps(from);
  const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  return rounded(_mm512_maskz_max_ps(number, _mm512_min_ps(x, most), least));
}

// rows[i][j] <-> rows[j][i].
inline void transpose(__m512i (&rows)[kLanes]) {
  __m512i t[kLanes];
  for (size_t i = 0; i < kLanes; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (size_t i = 0; i < kLanes; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (size_t half = 0; half < kLanes; half += 8) {
    for (size_t i = half; i < half + 4; ++i) {
      t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    }
  }
  for (size_t i = 0; i < 8; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

}  // namespace

void store_page_avx512(const KvLayout& layout, std::byte* page, const float* k, const float* v) {
  const size_t dim = layout.head_dim, width = layout.n_kv_head * dim;
  for (size_t head = 0; head < layout.n_kv_head; ++head, k += dim, v += dim) {
    std::byte* const k_tile = page + layout.k_offset(head);
    for (size_t d = 0; d < dim; d += 2 * kLanes) {
      __m512i rows[kLanes];
      for (size_t token = 0; token < kLanes; ++token) {
        rows[token] = pairs_of_row(k + token * width + d);
      }
      transpose(rows);
      for (size_t pair = 0; pair < kLanes; ++pair) {
        _mm512_storeu_si512(k_tile + (d / 2 + pair) * sizeof(__m512i), rows[pair]);
      }
    }
    std::byte* v_tile = page + layout.v_offset(head);
    for (size_t token = 0; token < kPageTokens; token += 2) {
      for (size_t d = 0; d < dim; d += kLanes, v_tile += sizeof(__m512i)) {
        const float* const at = v + token * width + d;
        _mm512_storeu_si512(v_tile, paired(rounded_values(at), rounded_values(at + width)));
      }
    }
  }
}

}  // namespace reprise::kernels

#include "kernels/largest_isa.h"
#include "kernels/largest_search.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

inline __m512i order(__m512 score) {
  const __m512i bits = _mm512_castps_si512(_mm512_add_ps(score, _mm512_setzero_ps()));  // no -0
  const __m512i flipped = _mm512_xor_si512(bits, _mm512_set1_epi32(INT32_MAX));
  const __m512i ordered = _mm512_mask_mov_epi32(bits, _mm512_movepi32_mask(bits), flipped);
  const __mmask16 nan = _mm512_cmp_ps_mask(score, score, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(ordered, nan, _mm512_set1_epi32(kNan));
}

struct Lanes512 {
  static Bounds fill_orders(const float* scores, size_t n, int32_t* orders) {
    const __m512i none = _mm512_set1_epi32(kNan);
    __m512i low = _mm512_set1_epi32(INT32_MAX), high = none;
    for (size_t i = 0; i < n; i += kLanes) {
      const __mmask16 lanes = first_lanes(static_cast<unsigned>(n - i));
      const __m512i x = order(_mm512_maskz_loadu_ps(lanes, scores + i));
      _mm512_storeu_si512(orders + i, _mm512_mask_mov_epi32(none, lanes, x));
      low = _mm512_mask_min_epi32(low, lanes, low, x);
      high = _mm512_mask_max_epi32(high, lanes, high, x);
    }
    return {_mm512_reduce_min_epi32(low), _mm512_reduce_max_epi32(high)};
  }

  static size_t count_above(const int32_t* orders, size_t n, int32_t edge) {
    const __m512i from = _mm512_set1_epi32(edge), one = _mm512_set1_epi32(-1);
    const auto add = [&](__m512i sum, size_t i) {
      const __m512i x = _mm512_loadu_si512(orders + i);
      return _mm512_mask_sub_epi32(sum, _mm512_cmpgt_epi32_mask(x, from), sum, one);
    };
    __m512i a = _mm512_setzero_si512(), b = a;
    size_t i = 0;
    for (; i + kLanes < n; i += 2 * kLanes) {
      a = add(a, i);
      b = add(b, i + kLanes);
    }
    if (i < n) a = add(a, i);
    return static_cast<size_t>(_mm512_reduce_add_epi32(_mm512_add_epi32(a, b)));
  }

  static unsigned above(const int32_t* orders, int32_t edge) {
    return _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(orders), _mm512_set1_epi32(edge));
  }
  static unsigned equal(const int32_t* orders, int32_t edge) {
    return _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(orders), _mm512_set1_epi32(edge));
  }
};

}  // namespace

void largest_avx512(const float* scores, size_t n, size_t k, int32_t* orders, int32_t* indices) {
  const __m512i own = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for_largest<Lanes512>(scores, n, k, orders, [&](size_t i, unsigned chosen) {
    const __m512i all = _mm512_add_epi32(own, _mm512_set1_epi32(static_cast<int32_t>(i)));
    const __m512i listed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(chosen), all);
    _mm512_mask_storeu_epi32(indices, first_lanes(count_of(chosen)), listed);
    indices += count_of(chosen);
  });
}

void mark_largest_avx512(const float* scores, size_t n, size_t k, int32_t* orders, int32_t& near,
                         uint16_t* marks) {
  mark_largest_of<Lanes512>(scores, n, k, orders, near, marks);
}

void take_marked_avx512(const uint16_t* marks, size_t n, const int32_t* blocks, const float* scores,
                        int32_t* marked_blocks, float* marked_scores) {
  for (size_t i = 0; i < n; i += kLanes) {
    const __mmask16 marked = marks[i / kLanes], lanes = first_lanes(static_cast<unsigned>(n - i));
    const __mmask16 some = first_lanes(count_of(marked));
    _mm512_mask_storeu_epi32(
        marked_blocks, some,
        _mm512_maskz_compress_epi32(marked, _mm512_maskz_loadu_epi32(lanes, blocks + i)));
    _mm512_mask_storeu_ps(
        marked_scores, some,
        _mm512_maskz_compress_ps(marked, _mm512_maskz_loadu_ps(lanes, scores + i)));
    marked_blocks += count_of(marked);
    marked_scores += count_of(marked);
  }
}

void put_marked_avx512(const uint16_t* marks, size_t n, const float* marked, float* scores) {
  for (size_t i = 0; i < n; i += kLanes) {
    const __mmask16 lanes = marks[i / kLanes];
    const unsigned count = count_of(lanes);
    const __m512 next = _mm512_maskz_loadu_ps(first_lanes(count), marked);
    _mm512_mask_storeu_ps(scores + i, lanes, _mm512_maskz_expand_ps(lanes, next));
    marked += count;
  }
}

}  // namespace reprise::kernels

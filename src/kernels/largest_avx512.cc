// The k-th largest score is found by bisection of its bits: counting what reaches a middle takes a
// comparison and an addition for 16 scores, and a middle that just k reach ends the search.
#include "kernels/largest_isa.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kLanes = 16;
constexpr int32_t kNan = INT32_MIN;  // no other score has that order

/// Integers that are ordered like scores.
inline __m512i order(__m512 score) {
  const __m512i bits = _mm512_castps_si512(_mm512_add_ps(score, _mm512_setzero_ps()));  // no -0
  const __m512i flipped = _mm512_xor_si512(bits, _mm512_set1_epi32(INT32_MAX));
  const __m512i ordered = _mm512_mask_mov_epi32(bits, _mm512_movepi32_mask(bits), flipped);
  const __mmask16 nan = _mm512_cmp_ps_mask(score, score, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(ordered, nan, _mm512_set1_epi32(kNan));
}

struct Bounds {
  int32_t low, high;
};

inline Bounds fill_orders(const float* scores, size_t n, int32_t* orders) {
  __m512i low = _mm512_set1_epi32(INT32_MAX), high = _mm512_set1_epi32(INT32_MIN);
  for (size_t i = 0; i < n; i += kLanes) {
    const __mmask16 lanes = first_lanes(static_cast<unsigned>(n - i));
    const __m512i x = order(_mm512_maskz_loadu_ps(lanes, scores + i));
    _mm512_mask_storeu_epi32(orders + i, lanes, x);
    low = _mm512_mask_min_epi32(low, lanes, low, x);
    high = _mm512_mask_max_epi32(high, lanes, high, x);
  }
  return {_mm512_reduce_min_epi32(low), _mm512_reduce_max_epi32(high)};
}

inline __mmask16 reaches(const int32_t* orders, __m512i least) {
  return _mm512_cmpge_epi32_mask(_mm512_loadu_si512(orders), least);
}

inline size_t count_from(const int32_t* orders, size_t n, int32_t least) {
  const __m512i from = _mm512_set1_epi32(least), one = _mm512_set1_epi32(-1);
  __m512i a = _mm512_setzero_si512(), b = a;
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    a = _mm512_mask_sub_epi32(a, reaches(orders + i, from), a, one);
    b = _mm512_mask_sub_epi32(b, reaches(orders + i + kLanes, from), b, one);
  }
  for (; i < n; i += kLanes) {
    const __mmask16 lanes = first_lanes(static_cast<unsigned>(n - i));
    const __m512i x = _mm512_maskz_loadu_epi32(lanes, orders + i);
    a = _mm512_mask_sub_epi32(a, _mm512_mask_cmpge_epi32_mask(lanes, x, from), a, one);
  }
  return static_cast<size_t>(_mm512_reduce_add_epi32(_mm512_add_epi32(a, b)));
}

/// What is chosen: every order from `above` on, and so many of those just below it.
struct Border {
  int64_t above;
  size_t equal;
};

inline Border find_border(const int32_t* orders, size_t n, size_t k, Bounds bounds) {
  // At least k reach low, and fewer than k, so many, reach high + 1.
  int64_t low = bounds.low, high = bounds.high;
  size_t beyond = 0;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    const size_t count = count_from(orders, n, static_cast<int32_t>(middle));
    if (count == k) return {middle, 0};
    if (count > k) {
      low = middle;
    } else {
      high = middle - 1;
      beyond = count;
    }
  }
  return {low + 1, k - beyond};
}

/// The lowest `count` of the set lanes.
inline unsigned lowest(unsigned lanes, size_t count) {
  for (; static_cast<size_t>(__builtin_popcount(lanes)) > count;) {
    lanes &= ~(1u << (31 - __builtin_clz(lanes)));
  }
  return lanes;
}

}  // namespace

void largest_avx512(const float* scores, size_t n, size_t k, int32_t* orders, int32_t* indices) {
  if (k == 0) return;
  const Border border = find_border(orders, n, k, fill_orders(scores, n, orders));
  const __m512i edge = _mm512_set1_epi32(static_cast<int32_t>(border.above - 1));
  const __m512i step = _mm512_set1_epi32(kLanes);
  __m512i own = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  size_t equal = border.equal;
  for (size_t i = 0; i < n; i += kLanes, own = _mm512_add_epi32(own, step)) {
    const __mmask16 lanes = first_lanes(static_cast<unsigned>(n - i));
    const __m512i x = _mm512_maskz_loadu_epi32(lanes, orders + i);
    unsigned chosen = _mm512_mask_cmpgt_epi32_mask(lanes, x, edge);
    if (equal > 0) {
      const unsigned level = lowest(_mm512_mask_cmpeq_epi32_mask(lanes, x, edge), equal);
      equal -= static_cast<size_t>(__builtin_popcount(level));
      chosen |= level;
    }
    const auto count = static_cast<unsigned>(__builtin_popcount(chosen));
    const __m512i listed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(chosen), own);
    _mm512_mask_storeu_epi32(indices, first_lanes(count), listed);
    indices += count;
  }
}

}  // namespace reprise::kernels

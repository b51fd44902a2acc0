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

// At least k reach low, and fewer than k, `beyond`, reach high + 1.
class BorderSearch {
 public:
  BorderSearch(const int32_t* orders, size_t n, size_t k, Bounds bounds)
      : orders_(orders), n_(n), k_(k), low_(bounds.low), high_(bounds.high) {}

  /// In ever longer steps from a place on, until one has gone beyond.
  void begin_at(int64_t near) {
    bool up = false;
    for (int64_t step = kFirstStep, at = near; inside(at); step *= 8) {
      const bool more = probe(at);
      if (step > kFirstStep && more != up) return;
      up = more;
      at += more ? step : -step;
    }
  }
  Border find() {
    while (low_ < high_) probe(low_ + (high_ - low_ + 1) / 2);
    return found_ ? Border{low_, 0} : Border{low_ + 1, k_ - beyond_};
  }

 private:
  static constexpr int64_t kFirstStep = 1 << 18;  // a fiftieth of most scores

  bool inside(int64_t at) const { return at > low_ && at <= high_; }
  /// Whether k or more reach a middle, which becomes a bound.
  bool probe(int64_t middle) {
    const size_t count = count_from(orders_, n_, static_cast<int32_t>(middle));
    if (count == k_) {
      found_ = true;
      low_ = high_ = middle;
    } else if (count > k_) {
      low_ = middle;
    } else {
      high_ = middle - 1;
      beyond_ = count;
    }
    return count >= k_;
  }

  const int32_t* orders_;
  size_t n_, k_, beyond_ = 0;
  int64_t low_, high_;
  bool found_ = false;  // just k reach low
};

/// The lowest `count` of the set lanes.
inline unsigned lowest(unsigned lanes, size_t count) {
  for (; static_cast<size_t>(__builtin_popcount(lanes)) > count;) {
    lanes &= ~(1u << (31 - __builtin_clz(lanes)));
  }
  return lanes;
}

/// body(i, chosen lanes) for all scores.
template <class Body>
inline void for_chosen(const int32_t* orders, size_t n, const Border& border, Body body) {
  const __m512i edge = _mm512_set1_epi32(static_cast<int32_t>(border.above - 1));
  size_t equal = border.equal;
  for (size_t i = 0; i < n; i += kLanes) {
    const __mmask16 lanes = first_lanes(static_cast<unsigned>(n - i));
    const __m512i x = _mm512_maskz_loadu_epi32(lanes, orders + i);
    unsigned chosen = _mm512_mask_cmpgt_epi32_mask(lanes, x, edge);
    if (equal > 0) {
      const unsigned level = lowest(_mm512_mask_cmpeq_epi32_mask(lanes, x, edge), equal);
      equal -= static_cast<size_t>(__builtin_popcount(level));
      chosen |= level;
    }
    body(i, chosen);
  }
}

inline unsigned count_of(unsigned lanes) {
  return static_cast<unsigned>(__builtin_popcount(lanes));
}

}  // namespace

void largest_avx512(const float* scores, size_t n, size_t k, int32_t* orders, int32_t* indices) {
  if (k == 0) return;
  const Border border = BorderSearch(orders, n, k, fill_orders(scores, n, orders)).find();
  const __m512i own = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for_chosen(orders, n, border, [&](size_t i, unsigned chosen) {
    const __m512i all = _mm512_add_epi32(own, _mm512_set1_epi32(static_cast<int32_t>(i)));
    const __m512i listed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(chosen), all);
    _mm512_mask_storeu_epi32(indices, first_lanes(count_of(chosen)), listed);
    indices += count_of(chosen);
  });
}

void mark_largest_avx512(const float* scores, size_t n, size_t k, int32_t* orders, int32_t& near,
                         uint16_t* marks) {
  static_assert(kMarks == kLanes);
  const Bounds bounds = fill_orders(scores, n, orders);
  Border border = {int64_t{bounds.high} + 1, 0};
  if (k > 0) {
    BorderSearch search(orders, n, k, bounds);
    search.begin_at(near);
    border = search.find();
    near = static_cast<int32_t>(border.above - 1);
  }
  for_chosen(orders, n, border,
             [&](size_t i, unsigned chosen) { marks[i / kLanes] = static_cast<uint16_t>(chosen); });
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

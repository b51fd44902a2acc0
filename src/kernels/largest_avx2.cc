#include "kernels/largest_isa.h"
#include "kernels/largest_search.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

inline __m256i order(__m256 score) {
  const __m256 bits = _mm256_add_ps(score, _mm256_setzero_ps());  // no -0
  const __m256 flipped = _mm256_xor_ps(bits, _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX)));
  const __m256 ordered = _mm256_blendv_ps(bits, flipped, bits);
  const __m256 nan = _mm256_cmp_ps(score, score, _CMP_UNORD_Q);
  const __m256 none = _mm256_castsi256_ps(_mm256_set1_epi32(kNan));
  return _mm256_castps_si256(_mm256_blendv_ps(ordered, none, nan));
}

inline __m256i load(const int32_t* orders) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(orders));
}

inline void store(int32_t* to, __m256i x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
}

struct Lanes256 {
  static Bounds fill_orders(const float* scores, size_t n, int32_t* orders) {
    const size_t whole = n / kHalf * kHalf;
    __m256i low = _mm256_set1_epi32(INT32_MAX), high = _mm256_set1_epi32(kNan);
    for (size_t i = 0; i < whole; i += kHalf) {
      const __m256i x = order(_mm256_loadu_ps(scores + i));
      store(orders + i, x);
      low = _mm256_min_epi32(low, x);
      high = _mm256_max_epi32(high, x);
    }
    Bounds bounds = {extreme<false>(low), extreme<true>(high)};
    for (size_t i = whole; i < n; ++i) {
      orders[i] = _mm256_extract_epi32(order(_mm256_set1_ps(scores[i])), 0);
      if (orders[i] < bounds.low) bounds.low = orders[i];
      if (orders[i] > bounds.high) bounds.high = orders[i];
    }
    for (size_t i = n; i % kLanes != 0; ++i) orders[i] = kNan;
    return bounds;
  }

  static size_t count_above(const int32_t* orders, size_t n, int32_t edge) {
    const __m256i from = _mm256_set1_epi32(edge);
    __m256i a = _mm256_setzero_si256(), b = a;
    for (size_t i = 0; i < n; i += kLanes) {
      a = _mm256_sub_epi32(a, _mm256_cmpgt_epi32(load(orders + i), from));
      b = _mm256_sub_epi32(b, _mm256_cmpgt_epi32(load(orders + i + kHalf), from));
    }
    int32_t counts[kHalf];
    store(counts, _mm256_add_epi32(a, b));
    size_t sum = 0;
    for (const int32_t count : counts) sum += static_cast<size_t>(count);
    return sum;
  }

  static unsigned above(const int32_t* orders, int32_t edge) {
    const __m256i from = _mm256_set1_epi32(edge);
    return mask(_mm256_cmpgt_epi32(load(orders), from),
                _mm256_cmpgt_epi32(load(orders + kHalf), from));
  }
  static unsigned equal(const int32_t* orders, int32_t edge) {
    const __m256i level = _mm256_set1_epi32(edge);
    return mask(_mm256_cmpeq_epi32(load(orders), level),
                _mm256_cmpeq_epi32(load(orders + kHalf), level));
  }

 private:
  static constexpr size_t kHalf = kLanes / 2;

  template <bool kLargest>
  static int32_t extreme(__m256i x) {
    int32_t lanes[kHalf];
    store(lanes, x);
    int32_t best = lanes[0];
    for (const int32_t lane : lanes) {
      if (kLargest ? lane > best : lane < best) best = lane;
    }
    return best;
  }

  static unsigned mask(__m256i low, __m256i high) {
    const auto bits = [](__m256i x) {
      return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(x)));
    };
    return bits(low) | bits(high) << kHalf;
  }
};

}  // namespace

void largest_avx2(const float* scores, size_t n, size_t k, int32_t* orders, int32_t* indices) {
  for_largest<Lanes256>(scores, n, k, orders, [&](size_t i, unsigned chosen) {
    for (; chosen != 0; chosen &= chosen - 1) {
      *indices++ = static_cast<int32_t>(i) + __builtin_ctz(chosen);
    }
  });
}

void mark_largest_avx2(const float* scores, size_t n, size_t k, int32_t* orders, int32_t& near,
                       uint16_t* marks) {
  mark_largest_of<Lanes256>(scores, n, k, orders, near, marks);
}

}  // namespace reprise::kernels

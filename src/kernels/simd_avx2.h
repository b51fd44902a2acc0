// Vector functions for sources compiled with AVX2 and FMA. Everything is static: the linker must
// not pick one of these for code that runs on a lesser machine.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/avx2.h"

namespace reprise::kernels {

// f<0>() to f<N - 1>(): indices that are constants from the start, so that arrays of accumulators
// lie in registers; those of a loop are unrolled too late.
template <int N, typename F>
[[gnu::always_inline]] static inline void unrolled(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f.template operator()<I>(), ...);
  }
  (std::make_integer_sequence<int, N>());
}

// A sum so far that compilers may not regroup: of many sums side by side they make trees, for which
// there are too few registers.
[[gnu::always_inline]] static inline __m256i in_order(__m256i x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#else
  __m128i low = _mm256_castsi256_si128(x), high = _mm256_extracti128_si256(x, 1);
  asm("" : "+w"(low), "+w"(high));
  x = _mm256_set_m128i(high, low);
#endif
  return x;
}

// 2^f on [0, 1) by a minimax polynomial of degree 5 with 2^0 = 1, times 2^floor(x): relative error
// below 3e-7. x is clamped to [-127, 127.5]; 2^-127 and less give 0, so that masked logits weigh
// nothing.
static inline __m256 exp2_256(__m256 x) {
  const __m256 lowest = _mm256_set1_ps(-127.0f);
  const __m256 used = _mm256_cmp_ps(x, lowest, _CMP_GT_OQ);
  x = _mm256_min_ps(_mm256_max_ps(x, lowest), _mm256_set1_ps(127.5f));
  const __m256 n = _mm256_floor_ps(x);
  const __m256 f = _mm256_sub_ps(x, n);
  __m256 y = _mm256_set1_ps(1.8775767e-3f);
  y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(8.9893397e-3f));
  y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(5.5826318e-2f));
  y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(2.4015361e-1f));
  y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(6.9315308e-1f));
  y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  const __m256i scaled = _mm256_add_epi32(_mm256_castps_si256(y), exponent);
  return _mm256_and_ps(_mm256_castsi256_ps(scaled), used);
}

// tanh(x) = 1 - 2 / (e^2x + 1): absolute error below 4e-7.
static inline __m256 tanh_256(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f), two = _mm256_set1_ps(2.0f);
  const __m256 e = exp2_256(_mm256_mul_ps(x, _mm256_set1_ps(2.8853900817779268f)));  // 2 / ln 2
  return _mm256_sub_ps(one, _mm256_div_ps(two, _mm256_add_ps(e, one)));
}

// cap tanh(x / cap)
static inline __m256 capped_256(__m256 x, float cap) {
  const __m256 limit = _mm256_set1_ps(cap);
  return _mm256_mul_ps(limit, tanh_256(_mm256_div_ps(x, limit)));
}

// Lanes whose bit of 8 is not set become -inf.
static inline __m256 masked_256(__m256 x, uint32_t lanes) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(lanes)), bit);
  const __m256 used = _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit));
  return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, used);
}

static inline float sum_256(__m256 x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

static inline float max_256(__m256 x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// Lanes [0, n) of 8 as a mask for maskload and maskstore.
static inline __m256i first_lanes_256(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

constexpr size_t kLanes256 = 8;

// Eight floats of a row, and fewer of them, its last ones: masked stores take a Zen 3 more than
// five times as long as others.
struct WholeVector {
  static __m256 load(const float* x) { return _mm256_loadu_ps(x); }
  static __m256 load(const float* x, __m256) { return _mm256_loadu_ps(x); }
  static void store(float* x, __m256 v) { _mm256_storeu_ps(x, v); }
};
struct PartOfVector {
  __m256i lanes;

  __m256 load(const float* x) const { return _mm256_maskload_ps(x, lanes); }
  // Lanes that are not used are those of `others`.
  __m256 load(const float* x, __m256 others) const {
    return _mm256_blendv_ps(others, load(x), _mm256_castsi256_ps(lanes));
  }
  void store(float* x, __m256 v) const { _mm256_maskstore_ps(x, lanes, v); }
};

// Calls body(offset, WholeVector or PartOfVector) for every vector of n floats.
template <typename Body>
[[gnu::always_inline]] static inline void for_vectors(size_t n, Body body) {
  size_t i = 0;
  for (; i + kLanes256 <= n; i += kLanes256) body(i, WholeVector{});
  if (i < n) body(i, PartOfVector{first_lanes_256(static_cast<int>(n - i))});
}

}  // namespace reprise::kernels

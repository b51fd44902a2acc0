// Rows of q times K tiles and weights times V tiles of any type in floats, with AVX2. Logits are in
// units of log2. Everything is static: see simd_avx2.h.
#pragma once

#include "kernels/attention_rows.h"
#include "kernels/tile_avx2.h"

namespace reprise::kernels {

static constexpr float kLog2e = 1.44269504f, kLn2 = 0.69314718f;

// Of the 16 tokens of a page.
struct Logits256 {
  __m256 low, high;
};

// logits[r] of R rows of q [head_dim] and the 16 tokens of a K tile. kRotates: the page asks for
// it. A sum waits for one addition of every pair of dims instead of two products.
template <KvType type, int R, bool kRotates>
[[gnu::always_inline]] static inline void score_tile(const AttendArgs& args, const float* q,
                                                     size_t head_dim, const PageSpan& page,
                                                     Logits256 (&logits)[R]) {
  __m256 sums[R][2];  // logits may lie in memory
  unrolled<2 * R>([&]<int i>()
                      __attribute__((always_inline)) { sums[i / 2][i % 2] = _mm256_setzero_ps(); });
#pragma GCC unroll 2
  for (size_t pair = 0; pair < head_dim / 2; ++pair) {
    const auto low = load_k_pair<type, kRotates>(head_dim, args.rope_pairs, page, pair, 0);
    const auto high = load_k_pair<type, kRotates>(head_dim, args.rope_pairs, page, pair, 8);
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const __m256 first = _mm256_broadcast_ss(q + r * head_dim + 2 * pair);
      const __m256 second = _mm256_broadcast_ss(q + r * head_dim + 2 * pair + 1);
      const __m256 a = _mm256_fmadd_ps(second, low.second, _mm256_mul_ps(first, low.first));
      const __m256 b = _mm256_fmadd_ps(second, high.second, _mm256_mul_ps(first, high.first));
      sums[r][0] = _mm256_add_ps(sums[r][0], a);
      sums[r][1] = _mm256_add_ps(sums[r][1], b);
    });
  }
  unrolled<R>([&]<int r>() __attribute__((always_inline)) {
    logits[r] = {sums[r][0], sums[r][1]};
  });
}

// Caps, biases and masks 8 logits from slot `slot` of a page.
static inline __m256 adjust_logits(const AttendArgs& args, const PageSpan& page, uint32_t visible,
                                   int slot, __m256 x) {
  if (args.soft_cap > 0.0f) x = capped_256(x, args.soft_cap * kLog2e);
  if (page.bias != nullptr) {
    x = _mm256_fmadd_ps(_mm256_loadu_ps(page.bias + slot), _mm256_set1_ps(kLog2e), x);
  }
  return visible == kAllSlots ? x : masked_256(x, visible >> slot);
}

static inline Logits256 adjust_logits(const AttendArgs& args, size_t row, const PageSpan& page,
                                      const Logits256& x) {
  const uint32_t visible = visible_slots(args, row, page);
  return {adjust_logits(args, page, visible, 0, x.low),
          adjust_logits(args, page, visible, 8, x.high)};
}

// Gives the adjusted logits of a row and a page back, in natural units.
static inline void keep_logits(const AttendArgs& args, size_t row, const PageSpan& page,
                               const Logits256& x) {
  float* const kept = kept_logits(args, row, page);
  _mm256_storeu_ps(kept, _mm256_mul_ps(x.low, _mm256_set1_ps(kLn2)));
  _mm256_storeu_ps(kept + 8, _mm256_mul_ps(x.high, _mm256_set1_ps(kLn2)));
}

}  // namespace reprise::kernels

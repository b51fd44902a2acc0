// Key logits with AVX2: groups of up to 4 rows share every load of a page.
#include "kernels/key_logits_isa.h"
#include "kernels/simd_avx2.h"
#include "kernels/tile_avx2.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 4, kHalf = 8;

// Logits of a page for R rows.
template <KvType type, int R>
void score_group(const KeyLogitsArgs& args, size_t row, size_t number) {
  const PageSpan* pages = args.pages.data();
  const PageSpan &page = pages[number], &next = pages[number + (number + 1 < args.pages.size())];
  const size_t head_dim = args.layout->head_dim, count = args.pairs.size();
  const uint16_t* pairs = args.pairs.data();
  const float* q = args.q + row * args.q_stride;
  __m256 sums[R][2] = {};
  for (size_t step = 0; step < (count == 0 ? head_dim / 2 : count); ++step) {
    const size_t pair = count == 0 ? step : pairs[step];
    prefetch_k_pair<type>(head_dim, next, pair);
    add_products<R>(sums, q + 2 * pair, args.q_stride,
                    load_k_pair<type>(head_dim, args.rope_pairs, page, pair, 0),
                    load_k_pair<type>(head_dim, args.rope_pairs, page, pair, kHalf));
  }
  for (int r = 0; r < R; ++r) {
    for (size_t half = 0; half < 2; ++half) {
      const size_t slot = half * kHalf;
      float* out = args.out + (row + r) * args.out_stride + number * kPageTokens + slot;
      const __m256 scale = _mm256_set1_ps(args.scale);
      __m256 x = args.accumulate ? _mm256_fmadd_ps(sums[r][half], scale, _mm256_loadu_ps(out))
                                 : _mm256_mul_ps(sums[r][half], scale);
      if (args.soft_cap > 0.0f) x = capped_256(x, args.soft_cap);
      _mm256_storeu_ps(out, masked_256(x, static_cast<uint32_t>(page.slots >> slot)));
    }
  }
}

template <KvType type>
void score_pages(const KeyLogitsArgs& args) {
  for (size_t number = 0; number < args.pages.size(); ++number) {
    size_t row = 0;
    for (; row + kGroupRows <= args.rows; row += kGroupRows) {
      score_group<type, kGroupRows>(args, row, number);
    }
    switch (args.rows - row) {
      case 3:
        score_group<type, 3>(args, row, number);
        break;
      case 2:
        score_group<type, 2>(args, row, number);
        break;
      case 1:
        score_group<type, 1>(args, row, number);
        break;
    }
  }
}

// Largest of the 16 slots that are set.
inline float largest_set(__m256 lower, __m256 upper, uint32_t slots) {
  return max_256(_mm256_max_ps(masked_256(lower, slots), masked_256(upper, slots >> kHalf)));
}

template <KvType type>
void find_bounds(const KvLayout& layout, const std::byte* k_tile, uint32_t slots, float* low,
                 float* high) {
  PageSpan page;
  page.k = k_tile;
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const auto negative = [&](__m256 x) { return _mm256_xor_ps(x, sign); };
  for (size_t pair = 0; pair < layout.head_dim / 2; ++pair) {
    const PairVectors a = load_k_pair<type>(layout.head_dim, 0, page, pair, 0);
    const PairVectors b = load_k_pair<type>(layout.head_dim, 0, page, pair, kHalf);
    low[2 * pair] = -largest_set(negative(a.first), negative(b.first), slots);
    low[2 * pair + 1] = -largest_set(negative(a.second), negative(b.second), slots);
    high[2 * pair] = largest_set(a.first, b.first, slots);
    high[2 * pair + 1] = largest_set(a.second, b.second, slots);
  }
}

}  // namespace

void key_logits_avx2(const KeyLogitsArgs& args) {
  for_kv_type(args.layout->type, [&](auto type) { score_pages<decltype(type)::value>(args); });
}

void key_bounds_avx2(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                     float* high) {
  for_kv_type(layout.type, [&](auto type) {
    find_bounds<decltype(type)::value>(layout, k_tile, slots, low, high);
  });
}

}  // namespace reprise::kernels

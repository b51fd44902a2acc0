// Key logits with AVX-512: groups of up to 4 rows share every load of four pages, which stay in the
// first cache for all groups.
#include "kernels/key_logits_isa.h"
#include "kernels/simd_avx512.h"
#include "kernels/tile_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 4, kUnitPages = 4;

// Four pages from number `first` and those that follow; past the end of the list the last repeats.
struct Unit {
  size_t first, count;
  const PageSpan *pages[kUnitPages], *next[kUnitPages];
  bool rotates = false;  // some page is rotated at read
};

Unit make_unit(const KeyLogitsArgs& args, size_t first) {
  const PageSpan* pages = args.pages.data();
  const size_t end = args.pages.size();
  Unit unit;
  unit.first = first;
  unit.count = end - first < kUnitPages ? end - first : kUnitPages;
  for (size_t p = 0; p < kUnitPages; ++p) {
    const size_t number = first + p, next = number + kUnitPages;
    unit.pages[p] = pages + (number < end ? number : end - 1);
    unit.next[p] = pages + (next < end ? next : end - 1);
    unit.rotates |= unit.pages[p]->cos_sin != nullptr;
  }
  return unit;
}

// A pair of dims of 16 tokens.
struct KeyVectors {
  __m512 first, second;
};

template <KvType type, bool kRotates>
inline KeyVectors load_key(size_t head_dim, size_t rope_pairs, const PageSpan& page, size_t pair) {
  if constexpr (type == KvType::kBF16 && !kRotates) {
    const __m512i pairs = _mm512_loadu_si512(page.k + pair * 2 * kPageTokens * sizeof(uint16_t));
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, upper))};
  } else {
    const Pairs row = load_k_row<type>(head_dim, kRotates ? rope_pairs : 0, page, pair);
    return {firsts(row), seconds(row)};
  }
}

// Logits of a unit for R rows.
template <KvType type, bool kRotates, int R>
void score_group(const KeyLogitsArgs& args, size_t row, const Unit& unit) {
  const size_t head_dim = args.layout->head_dim, count = args.pairs.size();
  const uint16_t* pairs = args.pairs.data();
  const float* q = args.q + row * args.q_stride;
  __m512 sums[R][kUnitPages];
  for (int r = 0; r < R; ++r) {
    for (__m512& sum : sums[r]) sum = _mm512_setzero_ps();
  }
  for (size_t step = 0; step < (count == 0 ? head_dim / 2 : count); ++step) {
    const size_t pair = count == 0 ? step : pairs[step];
    KeyVectors keys[kUnitPages];
    for (size_t p = 0; p < kUnitPages; ++p) {
      keys[p] = load_key<type, kRotates>(head_dim, args.rope_pairs, *unit.pages[p], pair);
      prefetch_k_pair<type>(head_dim, *unit.next[p], pair);
    }
    for (int r = 0; r < R; ++r) {
      const __m512 first = _mm512_set1_ps(q[r * args.q_stride + 2 * pair]);
      const __m512 second = _mm512_set1_ps(q[r * args.q_stride + 2 * pair + 1]);
      for (size_t p = 0; p < kUnitPages; ++p) {
        sums[r][p] = _mm512_fmadd_ps(first, keys[p].first, sums[r][p]);
      }
      for (size_t p = 0; p < kUnitPages; ++p) {
        sums[r][p] = _mm512_fmadd_ps(second, keys[p].second, sums[r][p]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    float* out = args.out + (row + r) * args.out_stride + unit.first * kPageTokens;
    for (size_t p = 0; p < unit.count; ++p, out += kPageTokens) {
      const __m512 scale = _mm512_set1_ps(args.scale);
      __m512 x = args.accumulate ? _mm512_fmadd_ps(sums[r][p], scale, _mm512_loadu_ps(out))
                                 : _mm512_mul_ps(sums[r][p], scale);
      if (args.soft_cap > 0.0f) x = capped_512(x, args.soft_cap);
      _mm512_storeu_ps(out, masked_512(x, unit.pages[p]->slots));
    }
  }
}

template <KvType type, bool kRotates>
void score_unit(const KeyLogitsArgs& args, const Unit& unit) {
  size_t row = 0;
  for (; row + kGroupRows <= args.rows; row += kGroupRows) {
    score_group<type, kRotates, kGroupRows>(args, row, unit);
  }
  switch (args.rows - row) {
    case 3:
      return score_group<type, kRotates, 3>(args, row, unit);
    case 2:
      return score_group<type, kRotates, 2>(args, row, unit);
    case 1:
      return score_group<type, kRotates, 1>(args, row, unit);
  }
}

template <KvType type>
void score_pages(const KeyLogitsArgs& args) {
  for (size_t first = 0; first < args.pages.size(); first += kUnitPages) {
    const Unit unit = make_unit(args, first);
    if (unit.rotates) {
      score_unit<type, true>(args, unit);
    } else {
      score_unit<type, false>(args, unit);
    }
  }
}

// Four rows at a time; past the end the last repeats, which is never larger than itself.
template <KvType type>
void find_best_rows(const KeyLogitsArgs& args, const float* offsets, int32_t* best) {
  constexpr size_t kRows = 4;
  for (const PageSpan& page : args.pages) {
    KeyVectors keys[kMostBestPairs];
    for (size_t i = 0; i < args.pairs.size(); ++i) {
      keys[i] = load_key<type, false>(args.layout->head_dim, 0, page, args.pairs[i]);
    }
    __m512 top = _mm512_set1_ps(-__builtin_inff());
    __m512i found = _mm512_setzero_si512();
    for (size_t first = 0; first < args.rows; first += kRows) {
      size_t rows[kRows];
      __m512 x[kRows];
      for (size_t j = 0; j < kRows; ++j) {
        rows[j] = first + j < args.rows ? first + j : args.rows - 1;
        x[j] = _mm512_set1_ps(-offsets[rows[j]]);
      }
      for (size_t i = 0; i < args.pairs.size(); ++i) {
        for (size_t j = 0; j < kRows; ++j) {
          const float* q = args.q + rows[j] * args.q_stride + size_t{2} * args.pairs[i];
          x[j] = _mm512_fmadd_ps(_mm512_set1_ps(q[0]), keys[i].first, x[j]);
          x[j] = _mm512_fmadd_ps(_mm512_set1_ps(q[1]), keys[i].second, x[j]);
        }
      }
      for (size_t j = 0; j < kRows; ++j) {
        const __mmask16 larger = _mm512_cmp_ps_mask(x[j], top, _CMP_GT_OQ);
        top = _mm512_mask_mov_ps(top, larger, x[j]);
        found = _mm512_mask_mov_epi32(found, larger, _mm512_set1_epi32(static_cast<int>(rows[j])));
      }
    }
    _mm512_storeu_si512(best, found);
    best += kPageTokens;
  }
}

// Lane i is the largest set lane of rows[i].
inline __m512 largest_set(const __m512 (&rows)[16], uint16_t slots) {
  __m512 masked[16];
  for (size_t i = 0; i < 16; ++i) masked[i] = masked_512(rows[i], slots);
  return largest_lanes(masked);
}

// Likewise the smallest.
inline __m512 smallest_set(const __m512 (&rows)[16], uint16_t slots) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  __m512 negative[16];
  for (size_t i = 0; i < 16; ++i) negative[i] = _mm512_xor_ps(rows[i], sign);
  return _mm512_xor_ps(largest_set(negative, slots), sign);
}

// out[2 i] = first[i], out[2 i + 1] = second[i], i < 16; the first n floats.
inline void store_pairs(float* out, size_t n, __m512 first, __m512 second) {
  const __m512i lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
  const auto left = static_cast<unsigned>(n);
  _mm512_mask_storeu_ps(out, first_lanes(left), _mm512_permutex2var_ps(first, lower, second));
  if (left <= 16) return;
  _mm512_mask_storeu_ps(out + 16, first_lanes(left - 16),
                        _mm512_permutex2var_ps(first, upper, second));
}

template <KvType type>
void find_bounds(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                 float* high) {
  PageSpan page;
  page.k = k_tile;
  const size_t head_dim = layout.head_dim, pairs = head_dim / 2;
  for (size_t pair = 0; pair < pairs; pair += 16) {
    __m512 first[16], second[16];
    for (size_t i = 0; i < 16; ++i) {
      const size_t source = pair + i < pairs ? pair + i : pair;
      const KeyVectors key = load_key<type, false>(head_dim, 0, page, source);
      first[i] = key.first;
      second[i] = key.second;
    }
    const size_t dim = 2 * pair, left = head_dim - dim;
    store_pairs(low + dim, left, smallest_set(first, slots), smallest_set(second, slots));
    store_pairs(high + dim, left, largest_set(first, slots), largest_set(second, slots));
  }
}

}  // namespace

void key_logits_avx512(const KeyLogitsArgs& args) {
  for_kv_type(args.layout->type, [&](auto type) { score_pages<decltype(type)::value>(args); });
}

void best_rows_avx512(const KeyLogitsArgs& args, const float* offsets, int32_t* best) {
  for_kv_type(args.layout->type,
              [&](auto type) { find_best_rows<decltype(type)::value>(args, offsets, best); });
}

void key_bounds_avx512(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                       float* high) {
  for_kv_type(layout.type, [&](auto type) {
    find_bounds<decltype(type)::value>(layout, k_tile, slots, low, high);
  });
}

}  // namespace reprise::kernels

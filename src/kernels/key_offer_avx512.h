// Offers scores to running lists of the k best with AVX-512. Everything is static: see
// simd_avx512.h.
#pragma once

#include "kernels/key_top_k_isa.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {

static constexpr size_t kOfferPages = 4;  // compared with the last of a list at once

// Slow path: some of these up to four pages may have a score that belongs into the list.
static inline void offer_pages(const float* scores, const PageSpan* pages, size_t count, size_t k,
                               RankedKey* list) {
  for (size_t p = count; p-- > 0;) {
    const __m512 values = _mm512_loadu_ps(scores + p * kPageTokens);
    uint32_t left = _mm512_mask_cmp_ps_mask(pages[p].slots, values,
                                            _mm512_set1_ps(list[k - 1].score), _CMP_GT_OQ);
    while (left != 0) {
      const uint32_t slot = 31u - static_cast<uint32_t>(__builtin_clz(left));
      left &= ~(1u << slot);
      const float score = scores[p * kPageTokens + slot];
      if (!(score > list[k - 1].score)) continue;
      insert_ranked(list, k, score, pages[p].index + static_cast<int32_t>(slot));
    }
  }
}

// One row of a whole block of four pages, all of whose slots are read.
static inline void offer_whole(const float* scores, const PageSpan* pages, size_t k,
                               RankedKey* list) {
  const __m512 last = _mm512_set1_ps(list[k - 1].score);
  unsigned better = 0;  // or NaN, which the slow way leaves out: a maximum would hide others
  for (size_t p = 0; p < kOfferPages; ++p) {
    const __m512 page = _mm512_loadu_ps(scores + p * kPageTokens);
    better |= _mm512_cmp_ps_mask(page, last, _CMP_NLE_UQ);
  }
  if (better == 0) return;
  offer_pages(scores, pages, kOfferPages, k, list);
}

static inline bool all_slots(const PageSpan* pages, size_t count) {
  for (size_t p = 0; p < count; ++p) {
    if (pages[p].slots != kAllSlots) return false;
  }
  return true;
}

// Up to four pages for all rows of a block.
static inline void offer_block(const ScoreBlock& block, size_t k, RankedKey* best) {
  const bool whole = block.count == kOfferPages && all_slots(block.pages, kOfferPages);
  for (size_t row = 0; row < block.rows; ++row) {
    const float* scores = block.scores + row * block.stride;
    if (whole) {
      offer_whole(scores, block.pages, k, best + row * k);
    } else {
      offer_pages(scores, block.pages, block.count, k, best + row * k);
    }
  }
}

}  // namespace reprise::kernels

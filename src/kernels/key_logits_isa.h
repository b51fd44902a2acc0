// The key logits kernels of one instruction set each; chosen in key_logits.cc.
#pragma once

#include "kernels/bf12.h"
#include "kernels/key_logits.h"

namespace reprise::kernels {

// Brings a pair of dims of a K tile closer. Static: each instruction set compiles its own.
template <KvType type>
static inline void prefetch_k_pair([[maybe_unused]] size_t head_dim, const PageSpan& page,
                                   size_t pair) {
  constexpr size_t kLine = 64, kElement = type == KvType::kF32 ? 4 : has_scales(type) ? 1 : 2;
  const std::byte* row = page.k + pair * 2 * kPageTokens * kElement;
  for (size_t at = 0; at < 2 * kPageTokens * kElement; at += kLine) {
    __builtin_prefetch(row + at, 0, 2);
  }
  if constexpr (type == KvType::kBF12) {
    __builtin_prefetch(bf12_tile(page.k, head_dim).high + pair * kPageTokens / 2, 0, 2);
  }
}

void key_logits_ref(const KeyLogitsArgs& args);
void key_logits_avx2(const KeyLogitsArgs& args);
void key_logits_avx512(const KeyLogitsArgs& args);

/// Pairs whose keys best_rows_avx512 keeps in registers; args.pairs has 1 to so many.
static constexpr size_t kMostBestPairs = 8;
void best_rows_avx512(const KeyLogitsArgs& args, const float* offsets, int32_t* best);

void key_bounds_ref(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                    float* high);
void key_bounds_avx2(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                     float* high);
void key_bounds_avx512(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                       float* high);

}  // namespace reprise::kernels

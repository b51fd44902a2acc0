#include "kernels/key_logits.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/key_logits_isa.h"

namespace reprise::kernels {

void key_logits(const KeyLogitsArgs& args) {
  form<key_logits_ref, key_logits_avx2, key_logits_avx512>()(args);
}

void best_rows(const KeyLogitsArgs& args, const float* offsets, int32_t* best) {
#if defined(__x86_64__)
  if (cpu_isa() >= Isa::kAvx512 && !args.pairs.empty() && args.pairs.size() <= kMostBestPairs)
    return best_rows_avx512(args, offsets, best);
#endif
  constexpr size_t kPiecePages = 16;  // whose products with all rows stay in the cache
  std::vector<float> products(args.rows * kPiecePages * kPageTokens);
  KeyLogitsArgs piece = args;
  piece.scale = 1.0f;
  piece.soft_cap = 0.0f;
  piece.rope_pairs = 0;
  piece.accumulate = false;
  piece.out = products.data();
  for (size_t first = 0; first < args.pages.size(); first += kPiecePages) {
    piece.pages = args.pages.subspan(first, std::min(kPiecePages, args.pages.size() - first));
    piece.out_stride = piece.pages.size() * kPageTokens;
    key_logits(piece);
    float top[kPiecePages * kPageTokens];
    int32_t* found = best + first * kPageTokens;
    std::fill_n(top, piece.out_stride, -std::numeric_limits<float>::infinity());
    std::fill_n(found, piece.out_stride, 0);
    for (size_t row = 0; row < args.rows; ++row) {
      const float* values = piece.out + row * piece.out_stride;
      for (size_t i = 0; i < piece.out_stride; ++i) {
        const float value = values[i] - offsets[row];
        found[i] = value > top[i] ? static_cast<int32_t>(row) : found[i];
        top[i] = value > top[i] ? value : top[i];
      }
    }
  }
}

void key_bounds(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                float* high) {
  form<key_bounds_ref, key_bounds_avx2, key_bounds_avx512>()(layout, k_tile, slots, low, high);
}

}  // namespace reprise::kernels

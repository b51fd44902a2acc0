// Plain logits of one key at a time. Readable rather than fast; also what runs where there is no
// vector kernel.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/key_logits_isa.h"
#include "kernels/ops_isa.h"

namespace reprise::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool is_set(uint16_t slots, size_t slot) { return (slots >> slot & 1) != 0; }

float logit(const KeyLogitsArgs& args, const float* q, const float* key) {
  const size_t count = args.pairs.empty() ? args.layout->head_dim / 2 : args.pairs.size();
  float sum = 0.0f;
  for (size_t i = 0; i < count; ++i) {
    const size_t d = 2 * (args.pairs.empty() ? i : args.pairs[i]);
    sum += q[d] * key[d];
    sum += q[d + 1] * key[d + 1];
  }
  sum *= args.scale;
  return args.soft_cap > 0.0f ? args.soft_cap * std::tanh(sum / args.soft_cap) : sum;
}

}  // namespace

void key_logits_ref(const KeyLogitsArgs& args) {
  const size_t head_dim = args.layout->head_dim;
  std::vector<float> key(head_dim);
  for (size_t i = 0; i < args.pages.size() * kPageTokens; ++i) {
    const PageSpan& page = args.pages[i / kPageTokens];
    const size_t slot = i % kPageTokens;
    load_k(*args.layout, page.k, slot, key.data());
    if (page.cos_sin != nullptr) {
      rope_ref(key.data(), page.cos_sin + slot * args.rope_pairs * 2, 1, head_dim, args.rope_pairs);
    }
    for (size_t r = 0; r < args.rows; ++r) {
      float& out = args.out[r * args.out_stride + i];
      const float before = args.accumulate ? out : 0.0f;
      const float value = logit(args, args.q + r * args.q_stride, key.data()) + before;
      out = is_set(page.slots, slot) ? value : -kInfinity;
    }
  }
}

void key_bounds_ref(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                    float* high) {
  std::vector<float> key(layout.head_dim);
  std::fill_n(low, layout.head_dim, kInfinity);
  std::fill_n(high, layout.head_dim, -kInfinity);
  for (size_t slot = 0; slot < kPageTokens; ++slot) {
    if (!is_set(slots, slot)) continue;
    load_k(layout, k_tile, slot, key.data());
    for (size_t d = 0; d < layout.head_dim; ++d) {
      low[d] = std::min(low[d], key[d]);
      high[d] = std::max(high[d], key[d]);
    }
  }
}

}  // namespace reprise::kernels

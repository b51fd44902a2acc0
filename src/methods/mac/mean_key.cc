#include "methods/mac/mean_key.h"

#include <algorithm>
#include <cmath>

#include "kernels/key_logits.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr size_t kPiecePages = 16;        // whose logits stay in the cache
constexpr float kLeast = -13.815510558f;  // ln 1e-6

/// Adds what the keys of one page weigh; logits: of its slots, rows stride apart.
void add_page(const kernels::KvLayout& layout, const kernels::PageSpan& page, const CoveredKeys& of,
              const float* logits, size_t stride, float* key, float* mean) {
  for (size_t slot = 0; slot < kPageTokens; ++slot) {
    const int32_t index = page.index + static_cast<int32_t>(slot);
    bool loaded = false;
    for (size_t r = 0; r < of.results; ++r) {
      const float log_weight = logits[r * stride + slot] - of.lse[r];
      if (!(log_weight > kLeast) || index < of.begin[r] || index >= of.end[r]) continue;
      if (!loaded) kernels::load_k(layout, page.k, slot, key);
      loaded = true;
      const float weight = std::exp(log_weight);
      for (size_t d = 0; d < layout.head_dim; ++d) mean[r * layout.head_dim + d] += weight * key[d];
    }
  }
}

}  // namespace

void mean_keys(const QueryRows& rows, const ModelConfig& config, const CoveredKeys& of,
               MeanKeyScratch& scratch, float* mean) {
  std::fill_n(mean, of.results * config.head_dim, 0.0f);
  const int32_t begin = *std::min_element(of.begin, of.begin + of.results);
  const int32_t end = *std::max_element(of.end, of.end + of.results);
  if (begin >= end) return;
  list_pages(rows, of.kv_head, begin, end, scratch.pages);
  scratch.key.resize(config.head_dim);
  scratch.logits.resize(of.results * kPiecePages * kPageTokens);
  kernels::KeyLogitsArgs args;
  args.layout = &rows.kv->pool().layout();
  args.rows = of.results;
  args.q = of.q;
  args.q_stride = config.head_dim;
  args.scale = config.attention_scale;
  args.out = scratch.logits.data();
  for (size_t first = 0; first < scratch.pages.size(); first += kPiecePages) {
    const size_t count = std::min(kPiecePages, scratch.pages.size() - first);
    args.pages = std::span(scratch.pages).subspan(first, count);
    args.out_stride = count * kPageTokens;
    kernels::key_logits(args);
    for (size_t i = 0; i < count; ++i) {
      add_page(*args.layout, args.pages[i], of, args.out + i * kPageTokens, args.out_stride,
               scratch.key.data(), mean);
    }
  }
}

}  // namespace reprise

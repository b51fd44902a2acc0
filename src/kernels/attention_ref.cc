// Plain attention of one row at a time: all logits, their maximum, the weighted sum. Readable
// rather than fast; also what runs where there is no vector kernel.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"
#include "kernels/ops_isa.h"

namespace reprise::kernels {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct RowBuffers {
  float* q;       // [head_dim] scaled
  float* token;   // [head_dim] a key or a value
  float* logits;  // [pages, 16]
};

float logit(const AttendArgs& args, const PageSpan& page, size_t slot, const RowBuffers& row) {
  const size_t head_dim = args.layout->head_dim;
  load_k(*args.layout, page.k, slot, row.token);
  if (page.cos_sin != nullptr) {
    rope_ref(row.token, page.cos_sin + slot * args.rope_pairs * 2, 1, head_dim, args.rope_pairs);
  }
  float sum = 0.0f;
  for (size_t d = 0; d < head_dim; ++d) sum += row.q[d] * row.token[d];
  if (args.soft_cap > 0.0f) sum = args.soft_cap * std::tanh(sum / args.soft_cap);
  return page.bias != nullptr ? sum + page.bias[slot] : sum;
}

// Fills row.logits; returns the largest.
float row_logits(const AttendArgs& args, size_t r, const RowBuffers& row) {
  float largest = kNothing;
  for (size_t i = 0; i < args.pages.size(); ++i) {
    const PageSpan& page = args.pages[i];
    const uint32_t visible = visible_slots(args, r, page);
    for (size_t slot = 0; slot < kPageTokens; ++slot) {
      float& value = row.logits[i * kPageTokens + slot];
      value = (visible >> slot & 1) != 0 ? logit(args, page, slot, row) : kNothing;
      largest = std::max(largest, value);
    }
  }
  return largest;
}

}  // namespace

void attend_ref(const AttendArgs& args, std::byte* scratch) {
  const size_t head_dim = args.layout->head_dim;
  RowBuffers row;
  row.q = reinterpret_cast<float*>(scratch);
  row.token = row.q + head_dim;
  row.logits = row.token + head_dim;
  for (size_t r = 0; r < args.rows; ++r) {
    for (size_t d = 0; d < head_dim; ++d) row.q[d] = args.q_row(r)[d] * args.scale;
    const float largest = row_logits(args, r, row);
    if (args.logits != nullptr) {
      std::copy_n(row.logits, args.pages.size() * kPageTokens,
                  args.logits + r * args.logits_stride);
    }
    float* out = args.out_row(r);
    std::fill_n(out, head_dim, 0.0f);
    args.lse[r] = kNothing;
    if (largest == kNothing) continue;
    float sum = 0.0f;
    for (size_t i = 0; i < args.pages.size() * kPageTokens; ++i) {
      if (row.logits[i] == kNothing) continue;
      const float weight = std::exp(row.logits[i] - largest);
      sum += weight;
      load_v(*args.layout, args.pages[i / kPageTokens].v, i % kPageTokens, row.token);
      for (size_t d = 0; d < head_dim; ++d) out[d] += weight * row.token[d];
    }
    for (size_t d = 0; d < head_dim; ++d) out[d] /= sum;
    args.lse[r] = largest + std::log(sum);
  }
}

}  // namespace reprise::kernels

#include "methods/baselines/kept_scores.h"

#include <cstring>

#include "kernels/softmax.h"

namespace reprise {

uint64_t KeptScores::bytes_read() const {
  const auto begin = static_cast<size_t>(keys_.begin), end = static_cast<size_t>(keys_.end);
  const size_t own = PageMap::blocks_of(end) - begin / kPageTokens;
  return (side_pages() + own) * kv_.pool().layout().tile_bytes();
}

std::vector<kernels::PageSpan> KeptScores::page_spans(size_t kv_head) const {
  const size_t k_offset = kv_.pool().layout().k_offset(kv_head);
  std::vector<kernels::PageSpan> spans;
  const auto add = [&](const SequenceKv& from, size_t first, size_t last) {
    for (size_t block = first; block < last; ++block) {
      kernels::PageSpan& span = spans.emplace_back();
      span.k = from.page(keys_.layer, block) + k_offset;
    }
  };
  if (keys_.side > 0) add(*side_, 0, side_pages());
  add(kv_, static_cast<size_t>(keys_.begin) / kPageTokens,
      PageMap::blocks_of(static_cast<size_t>(keys_.end)));
  return spans;
}

void KeptScores::fill_logits(const ScoredRows& rows, size_t first, size_t count,
                             std::span<const kernels::PageSpan> spans, float* out) const {
  kernels::KeyLogitsArgs args;
  args.layout = &kv_.pool().layout();
  args.pages = spans;
  args.scale = shape_.scale;
  args.soft_cap = shape_.soft_cap;
  const size_t stride = spans.size() * kPageTokens;
  const float* q = rows.q + first * rows.stride;
  if (count == 1) {  // the heads share one pass over the keys
    args.rows = rows.heads;
    args.q = q;
    args.q_stride = shape_.head_dim;
    args.out = out;
    args.out_stride = stride;
    return kernels::key_logits(args);
  }
  for (size_t head = 0; head < rows.heads; ++head) {
    args.rows = count;
    args.q = q + head * shape_.head_dim;
    args.q_stride = rows.stride;
    args.out = out + head * stride;
    args.out_stride = rows.heads * stride;
    kernels::key_logits(args);
  }
}

std::span<const float> KeptScores::probabilities(int32_t position, float* logits) const {
  const auto side = static_cast<size_t>(keys_.side);
  const size_t own = side_pages() * kPageTokens + static_cast<size_t>(keys_.begin) % kPageTokens;
  const auto seen = static_cast<size_t>(std::min(position + 1, keys_.end) - keys_.begin);
  std::memmove(logits + side, logits + own, seen * sizeof(float));
  kernels::softmax(logits, side + seen);
  return {logits, side + seen};
}

}  // namespace reprise

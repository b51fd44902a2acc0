#include "fusion/fused_attention.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {

void FusedAttention::begin(std::span<const int32_t> positions) {
  rows_.clear();
  for (const int32_t position : positions) {
    rows_.push_back({0, position, prompt_.tokens[static_cast<size_t>(position)]});
  }
  steps_ = {{&kv_, &policy_, 0, static_cast<uint32_t>(rows_.size()), kernels::Phase::kPrefill,
             prompt_.end()}};
  executor_.begin(rows_, steps_);
}

void FusedAttention::keep(std::span<const int32_t> positions) {
  keep_.emplace(positions.begin(), positions.end());
}

Status FusedAttention::attend(uint32_t layer, float* q, float* k, float* v, float* out) {
  REPRISE_CHECK(loader_.load_through(layer));
  const bool watched = layer == hooks_.layer;
  if (watched && hooks_.before) hooks_.before(q, v);
  REPRISE_CHECK(executor_.attend(layer, q, k, v, out));
  if (watched && hooks_.after) hooks_.after(q, v);
  return {};
}

std::optional<std::span<const uint32_t>> FusedAttention::kept_rows() {
  if (!keep_) return std::nullopt;
  kept_.clear();
  size_t row = 0;
  for (const int32_t position : *keep_) {
    while (rows_[row].position < position) ++row;
    kept_.push_back(static_cast<uint32_t>(row));
  }
  begin(*keep_);
  keep_.reset();
  return kept_;
}

}  // namespace reprise

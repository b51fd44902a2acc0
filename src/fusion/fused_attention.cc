#include "fusion/fused_attention.h"

#include <algorithm>

#include "base/try.h"

namespace reprise {

void FusedAttention::begin(std::span<const int32_t> positions) {
  rows_.clear();
  for (const int32_t position : positions) {
    rows_.push_back({0, position, prompt_.tokens[static_cast<size_t>(position)]});
  }
  if (few_ == nullptr) return begin_rows(rows_);
  const std::vector<ReadStep> reads = read_steps(prompt_, *few_, positions);
  few_policies_.clear();
  for (const ReadStep& step : reads) few_policies_.emplace_back(*packed_, step);
  steps_.clear();
  for (size_t i = 0; i < reads.size(); ++i) {
    steps_.push_back({&kv_, &few_policies_[i], reads[i].first_row, reads[i].rows,
                      kernels::Phase::kPrefill, prompt_.end()});
  }
  executor_.begin(rows_, steps_);
}

void FusedAttention::begin_rows(std::span<const Row> rows) {
  steps_ = {{&kv_, &policy_, 0, static_cast<uint32_t>(rows.size()), kernels::Phase::kPrefill,
             prompt_.end()}};
  executor_.begin(rows, steps_);
}

void FusedAttention::keep(std::span<const int32_t> positions) {
  keep_.emplace(positions.begin(), positions.end());
}

Status FusedAttention::attend(uint32_t layer, float* q, float* k, float* v, float* out) {
  REPRISE_CHECK(loader_.load_through(layer));
  const bool all_rows_read = layer + 1 < config_.n_layer && config_.window[layer] == 0;
  if (packed_ != nullptr && all_rows_read) {
    REPRISE_CHECK(packed_->begin(kv_.pool(), layer, rows_.back().position + 1));
  }
  const bool watched = std::ranges::count(hooks_.layers, layer) > 0;
  if (watched && hooks_.before) hooks_.before(layer, v);
  REPRISE_CHECK(layer + 1 < config_.n_layer ? executor_.attend(layer, q, k, v, out)
                                            : attend_last_row(layer, q, k, v, out));
  if (watched && hooks_.after) hooks_.after(layer, q);
  return hooks_.each ? hooks_.each(layer) : Status();
}

Status FusedAttention::attend_last_row(uint32_t layer, float* q, float* k, float* v, float* out) {
  const size_t last = rows_.size() - 1, q_at = last * config_.n_head * config_.head_dim;
  const size_t kv_width = size_t{config_.n_kv_head} * config_.head_dim;
  const float* k_row = k + last * kv_width;
  std::vector<float> unrotated(k_row, k_row + kv_width);  // stored once more
  REPRISE_CHECK(executor_.store(layer, q, k, v));
  begin_rows(std::span(rows_).last(1));
  return executor_.attend(layer, q + q_at, unrotated.data(), v + last * kv_width, out + q_at);
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

// The first-order correction, see mean_key.h.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "methods/mac/mac.h"
#include "methods/mac/mean_key.h"

namespace reprise {

float MacPolicy::mean_logit(const float* q_rotated, size_t head) const {
  const size_t first = head * config_->head_dim;
  const float* mean = &means_[first];
  return config_->attention_scale *
         std::inner_product(mean, mean + config_->head_dim, q_rotated + first, 0.0f);
}

int32_t MacPolicy::weighed_from(size_t head, int32_t cut) const {
  if (reused_from_[head] > 0) return reused_from_[head];
  return reads_all_ ? settings_.cut.sink : cut;  // an inner policy's few keys are not weighed
}

uint64_t MacPolicy::weighed_bytes(const QueryRows& rows) const {
  const int32_t cut = settings_.cut.at(rows.first());
  uint64_t keys = 0;
  for (size_t first = 0; first < reused_from_.size(); first += group_) {
    int32_t from = cut;
    for (size_t head = first; head < first + group_; ++head) {
      from = std::min(from, weighed_from(head, cut));
    }
    keys += static_cast<uint64_t>(cut - from);
  }
  return keys * rows.kv->pool().layout().tile_bytes() / kPageTokens;
}

void MacPolicy::weigh_keys(const QueryRows& rows) {
  const size_t head_dim = config_->head_dim, width = config_->n_head * head_dim;
  const int32_t cut = settings_.cut.at(rows.first());
  std::vector<int32_t> begin(config_->n_head), end(config_->n_head, cut);
  for (size_t head = 0; head < begin.size(); ++head) {
    begin[head] = weighed_from(head, cut);
  }
  std::vector<float> fresh(width);
  rows.pool->run(config_->n_kv_head, [&](size_t kv_head, int) {
    const size_t head = kv_head * group_;
    MeanKeyScratch scratch;
    mean_keys(rows, *config_,
              {kv_head, group_, rows.q_rotated + head * head_dim, &begin[head], &end[head],
               &captured_.lse[head]},
              scratch, &fresh[head * head_dim]);
  });
  for (size_t head = 0; head < begin.size(); ++head) {
    const bool reused = reused_from_[head] > 0;
    const float kept = reused ? std::exp(reused_.lse[head] - captured_.lse[head]) : 0.0f;
    for (size_t i = head * head_dim; i < (head + 1) * head_dim; ++i) {
      means_[i] = fresh[i] + (reused ? kept * means_[i] : 0.0f);
    }
    states_[head].mean_logit = mean_logit(rows.q_rotated, head);
  }
}

}  // namespace reprise

#include "methods/csattention/query_samples.h"

#include <algorithm>
#include <cmath>

namespace reprise {
namespace {

constexpr size_t kSamples = 2048;  // per KV head
constexpr float kShortest = 1e-12f;

}  // namespace

float direction(const float* q, std::span<const uint16_t> pairs, float* out) {
  float norm = 0.0f;
  for (const uint16_t pair : pairs) {
    norm += q[2 * pair] * q[2 * pair] + q[2 * pair + 1] * q[2 * pair + 1];
  }
  norm = std::sqrt(norm);
  if (!(norm > kShortest) || !std::isfinite(norm)) return 0.0f;
  for (const uint16_t pair : pairs) {
    *out++ = q[2 * pair] / norm;
    *out++ = q[2 * pair + 1] / norm;
  }
  return norm;
}

QuerySamples::QuerySamples(const ModelConfig& config) : config_(&config), room_(room(config)) {}

size_t QuerySamples::room(const ModelConfig& config) {
  return std::max<size_t>(1, kSamples * config.n_kv_head / config.n_head);
}

void QuerySamples::take(const QueryRows& rows, const QueryWindow& window) {
  const bool prefill = rows.phase == kernels::Phase::kPrefill;
  const size_t width = size_t{config_->n_head} * config_->head_dim;
  const auto count = static_cast<size_t>(window.end - window.first);
  const size_t quota = std::min(room_, count);
  const int32_t first = std::max(window.first, rows.first());
  const int32_t end = std::min(window.end, rows.end());
  // Samples that these rows do not continue are of another prompt, which was given up.
  if (prefill && first < end && end_ != first) clear();
  for (int32_t position = first; position < end; ++position) {
    const auto i = static_cast<size_t>(position - window.first);
    const bool chosen = !prefill || chooses(i, quota, count);
    end_ = position + 1;
    if (!chosen || queries_.size() >= room_ * width) continue;
    const float* q = rows.q_rotated + static_cast<size_t>(position - rows.first()) * width;
    queries_.insert(queries_.end(), q, q + width);
  }
}

std::vector<float> QuerySamples::directions(size_t kv_head, std::span<const uint16_t> pairs) const {
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  const size_t dims = 2 * pairs.size();
  std::vector<float> found, one(dims);
  for (size_t row = 0; row < queries_.size(); row += config_->n_head * dim) {
    for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      if (direction(&queries_[row + head * dim], pairs, one.data()) == 0.0f) continue;
      found.insert(found.end(), one.begin(), one.end());
    }
  }
  if (found.empty()) {
    found.assign(dims, 0.0f);
    found[0] = 1.0f;
  }
  return found;
}

void QuerySamples::clear() {
  queries_ = std::vector<float>();  // {} would keep the memory
  end_ = 0;
}

void QuerySamples::truncate(int32_t length) {
  if (end_ > length) clear();
}

}  // namespace reprise

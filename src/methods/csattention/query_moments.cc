#include "methods/csattention/query_moments.h"

#include <algorithm>
#include <cmath>

namespace reprise {
namespace {

// Weight of isotropic queries beside those that were seen: errors in no direction are free.
constexpr float kPrior = 0.01f;

size_t dims_of(std::span<const float> square) {
  return static_cast<size_t>(std::lround(std::sqrt(square.size())));
}

float trace_of(std::span<const float> square) {
  float trace = 0.0f;
  for (size_t i = 0; i < square.size(); i += dims_of(square) + 1) trace += square[i];
  return trace;
}

}  // namespace

QueryMoments::QueryMoments(const ModelConfig& config, std::vector<std::vector<uint16_t>> parts)
    : config_(&config), parts_(std::move(parts)), layers_(config.n_layer) {}

void QueryMoments::add(const QueryRows& rows, const QueryWindow& window) {
  const int32_t first = std::max(window.first, rows.first());
  const int32_t end = std::min(window.end, rows.end());
  if (first >= end) return;
  Layer& layer = layers_[rows.layer];
  // Sums that these rows do not continue are of another prompt, which was given up.
  if (rows.phase == kernels::Phase::kPrefill && layer.end != first) layer = {};
  layer.end = end;
  layer.rows += end - first;
  layer.sums.resize(config_->n_kv_head * parts_.size());
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  const auto add_part = [&](size_t task) {
    const size_t kv_head = task / parts_.size(), part = task % parts_.size();
    const size_t dims = 2 * parts_[part].size();
    layer.sums[task].resize(dims * dims);
    for (int32_t row = first - rows.first(); row < end - rows.first(); ++row) {
      const float* q = rows.q_rotated + static_cast<size_t>(row) * config_->n_head * dim;
      for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        add_query(q + head * dim, part, layer.sums[task]);
      }
    }
  };
  if (end - first > 1) {
    rows.pool->run(layer.sums.size(), [&](size_t task, int) { add_part(task); });
  } else {  // less than what it takes to wake threads
    for (size_t task = 0; task < layer.sums.size(); ++task) add_part(task);
  }
}

void QueryMoments::add_query(const float* q, size_t part, std::vector<float>& sums) const {
  const auto& pairs = parts_[part];
  const size_t dims = 2 * pairs.size();
  float norm = 0.0f;
  for (const uint16_t pair : pairs) {
    norm += q[2 * pair] * q[2 * pair] + q[2 * pair + 1] * q[2 * pair + 1];
  }
  if (!std::isfinite(norm)) return;
  for (size_t i = 0; i < dims; ++i) {
    const float factor = q[2 * pairs[i / 2] + i % 2];
    for (size_t j = 0; j < dims; ++j) sums[i * dims + j] += factor * q[2 * pairs[j / 2] + j % 2];
  }
}

PartMetrics QueryMoments::metrics(uint32_t layer) const {
  PartMetrics metrics = layers_[layer].sums;
  for (std::vector<float>& metric : metrics) {
    const size_t dims = dims_of(metric);
    const float trace = trace_of(metric);
    if (!(trace > 0.0f) || !std::isfinite(trace)) {
      metric.clear();  // Euclidean
      continue;
    }
    const float scale = static_cast<float>(dims) / trace;
    for (float& value : metric) value *= scale;
    for (size_t i = 0; i < dims; ++i) metric[i * dims + i] += kPrior;
  }
  return metrics;
}

std::vector<float> QueryMoments::energies(uint32_t layer) const {
  std::vector<float> energies;
  for (const auto& sums : layers_[layer].sums) energies.push_back(trace_of(sums));
  return energies;
}

void QueryMoments::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    if (layer.end > length) layer = {};
  }
}

uint64_t QueryMoments::bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const auto& sums : layer.sums) bytes += sums.capacity() * sizeof(float);
  }
  return bytes;
}

}  // namespace reprise

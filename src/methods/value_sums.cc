#include "methods/value_sums.h"

namespace reprise {

ValueSums::ValueSums(const ModelConfig& config)
    : n_kv_head_(config.n_kv_head), head_dim_(config.head_dim), layers_(config.n_layer) {}

void ValueSums::update(const QueryRows& rows) {
  Layer& layer = layers_[rows.layer];
  const auto first = static_cast<size_t>(layer.tokens), end = static_cast<size_t>(rows.end());
  if (first >= end) return;
  if (first == 0) layer.sums.assign(size_t{n_kv_head_} * head_dim_, 0.0);
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  rows.pool->run(n_kv_head_, [&](size_t head, int) {
    std::vector<float> value(head_dim_);
    double* sums = &layer.sums[head * head_dim_];
    for (size_t token = first; token < end; ++token) {
      const std::byte* page = rows.kv->page(rows.layer, token / kPageTokens);
      kernels::load_v(layout, page + layout.v_offset(head), token % kPageTokens, value.data());
      for (size_t d = 0; d < head_dim_; ++d) sums[d] += value[d];
    }
  });
  layer.tokens = rows.end();
}

void ValueSums::mean(uint32_t index, std::vector<float>& mean) const {
  const Layer& layer = layers_[index];
  mean.resize(layer.sums.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    mean[i] = static_cast<float>(layer.sums[i] / layer.tokens);
  }
}

// What was added cannot be taken back exactly, so a cut layer starts again.
void ValueSums::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    if (length < layer.tokens) layer.tokens = 0;
  }
}

uint64_t ValueSums::bytes() const {
  uint64_t values = 0;
  for (const Layer& layer : layers_) values += layer.sums.capacity();
  return values * sizeof(double);
}

}  // namespace reprise

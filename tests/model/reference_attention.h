// Plain attention in double precision over everything seen so far: the tests' AttentionOp.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "model/model.h"

namespace reprise::test {

class ReferenceAttention : public AttentionOp {
 public:
  explicit ReferenceAttention(const Model& model) : model_(model) {}

  /// The rows of the next forward pass.
  void begin(std::vector<Row> rows) { rows_ = std::move(rows); }

  Status attend(uint32_t layer, float* q, float* k, float* v, float* out) override {
    const ModelConfig& c = model_.config();
    const size_t n = c.head_dim;
    for (size_t row = 0; row < rows_.size(); ++row) {
      Entry& entry = seen_[{rows_[row].sequence, layer}][rows_[row].position];
      entry.k = rotated(layer, rows_[row].position, k + row * c.n_kv_head * n, c.n_kv_head);
      entry.v.assign(v + row * c.n_kv_head * n, v + (row + 1) * c.n_kv_head * n);
    }
    for (size_t row = 0; row < rows_.size(); ++row) {
      const auto query = rotated(layer, rows_[row].position, q + row * c.n_head * n, c.n_head);
      for (size_t head = 0; head < c.n_head; ++head) {
        attend_head(layer, rows_[row], &query[head * n], head, out + (row * c.n_head + head) * n);
      }
    }
    return {};
  }

 private:
  struct Entry {
    std::vector<double> k, v;  // [n_kv_head, head_dim]
  };
  using Place = std::pair<uint32_t, uint32_t>;  // sequence, layer

  std::vector<double> rotated(uint32_t layer, int32_t position, const float* heads,
                              size_t count) const {
    const RopeTable& rope = model_.rope(layer);
    const size_t n = model_.config().head_dim;
    std::vector<float> cos_sin(2 * rope.pairs());
    rope.cos_sin(position, cos_sin.data());
    std::vector<double> result(heads, heads + count * n);
    for (size_t head = 0; head < count; ++head) {
      for (size_t i = 0; i < rope.pairs(); ++i) {
        double *a = &result[head * n + 2 * i], *b = a + 1;
        const double c = cos_sin[2 * i], s = cos_sin[2 * i + 1], first = *a;
        *a = first * c - *b * s;
        *b = first * s + *b * c;
      }
    }
    return result;
  }

  void attend_head(uint32_t layer, const Row& row, const double* query, size_t head, float* out) {
    const ModelConfig& c = model_.config();
    const size_t n = c.head_dim, kv_head = head / (c.n_head / c.n_kv_head);
    std::vector<double> sum(n);
    double total = 0;
    for (const auto& [position, entry] : seen_[{row.sequence, layer}]) {
      const auto distance = static_cast<int64_t>(row.position) - position;
      if (distance < 0 || (c.window[layer] != 0 && distance >= c.window[layer])) continue;
      double score = 0;
      for (size_t i = 0; i < n; ++i) score += query[i] * entry.k[kv_head * n + i];
      score *= c.attention_scale;
      if (c.attention_soft_cap != 0) {
        score = c.attention_soft_cap * std::tanh(score / c.attention_soft_cap);
      }
      const double weight = std::exp(score);  // the tests' scores are far from overflow
      total += weight;
      for (size_t i = 0; i < n; ++i) sum[i] += weight * entry.v[kv_head * n + i];
    }
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(sum[i] / total);
  }

  const Model& model_;
  std::vector<Row> rows_;
  std::map<Place, std::map<int32_t, Entry>> seen_;
};

}  // namespace reprise::test

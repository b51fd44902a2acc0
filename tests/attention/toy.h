// A toy stack of attention layers with random q, k, v: executor, policies and KV without a model.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "attention/executor.h"
#include "base/thread_pool.h"

namespace reprise::testing {

struct ToyShape {
  uint32_t n_layer = 2, n_head = 4, n_kv_head = 2, head_dim = 32;
  kernels::KvType type = kernels::KvType::kF32;
  uint32_t window = 0;  // of the first layer; the others read everything
  float soft_cap = 0.0f;
  uint32_t rope_dims = 0;  // first dims of a head that are rotated; 0 = all
  RopeConfig rope = {};    // but for its dims
};

inline ModelConfig toy_config(const ToyShape& shape) {
  ModelConfig config;
  config.n_layer = shape.n_layer;
  config.n_head = shape.n_head;
  config.n_kv_head = shape.n_kv_head;
  config.head_dim = shape.head_dim;
  config.window.assign(shape.n_layer, 0);
  config.window[0] = shape.window;
  config.rope = shape.rope;
  config.rope.dims = shape.rope_dims > 0 ? shape.rope_dims : shape.head_dim;
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  config.attention_soft_cap = shape.soft_cap;
  return config;
}

/// Random q, k, v of every (layer, position), the same whatever order they are computed in.
class Toy {
 public:
  Toy(const ToyShape& shape, size_t tokens, int threads = 2)
      : config_(toy_config(shape)),
        rope_(config_.rope, 4096),
        pool_(threads),
        ropes_(shape.n_layer, &rope_),
        executor_(config_, ropes_, pool_),
        tokens_(tokens) {
    const kernels::KvLayout layout = {shape.type, shape.n_kv_head, shape.head_dim};
    pages_ = std::make_unique<PagePool>(*PagePool::create(layout, shape.n_layer, 64 << 20));
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (auto* values : {&q_, &k_, &v_}) {
      const uint32_t heads = values == &q_ ? shape.n_head : shape.n_kv_head;
      values->resize(size_t{shape.n_layer} * tokens * heads * shape.head_dim);
      for (float& value : *values) value = normal(random);
    }
  }

  const ModelConfig& config() const { return config_; }
  const RopeTable& rope() const { return rope_; }
  PagePool& pages() { return *pages_; }
  SequenceKv new_sequence() { return SequenceKv(*pages_); }
  CpuExecutor& executor() { return executor_; }
  float* q(size_t layer, size_t token) { return at(q_, layer, token, config_.n_head); }
  float* k(size_t layer, size_t token) { return at(k_, layer, token, config_.n_kv_head); }
  float* v(size_t layer, size_t token) { return at(v_, layer, token, config_.n_kv_head); }
  size_t width() const { return size_t{config_.n_head} * config_.head_dim; }
  int32_t prompt_end = 0;  // what policies are told; 0: every prefill step ends a prompt

  /// Computes the next count tokens of a sequence; returns [layers][count][n_head, head_dim].
  /// apart: each row is a step of its own.
  std::vector<float> step(SequenceKv& kv, Policy& policy, size_t count, kernels::Phase phase,
                          bool apart = false) {
    const int32_t first = kv.length();
    std::vector<Row> rows;
    for (size_t i = 0; i < count; ++i) rows.push_back({0, first + static_cast<int32_t>(i), 0});
    EXPECT_TRUE(kv.reserve(count));
    const auto end = first + static_cast<int32_t>(count);
    const auto size = static_cast<uint32_t>(apart ? 1 : count);
    std::vector<SequenceStep> steps;
    for (uint32_t row = 0; row < count; row += size) {
      steps.push_back({&kv, &policy, row, size, phase, prompt_end > 0 ? prompt_end : end});
    }
    executor_.begin(rows, steps);
    std::vector<float> out(config_.n_layer * count * width());
    const size_t kv_width = size_t{config_.n_kv_head} * config_.head_dim;
    for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
      const auto start = static_cast<size_t>(first);
      std::vector<float> q(this->q(layer, start), this->q(layer, start) + count * width());
      std::vector<float> k(this->k(layer, start), this->k(layer, start) + count * kv_width);
      std::vector<float> v(this->v(layer, start), this->v(layer, start) + count * kv_width);
      const Status status =
          executor_.attend(layer, q.data(), k.data(), v.data(), &out[layer * count * width()]);
      EXPECT_TRUE(status) << status.error().message;
    }
    kv.commit(count);
    policy.after_step(kv);
    return out;
  }

  /// Attention of one query head in double. keep(key) says which causal keys are read;
  /// query_position is where the query is rotated to for a key.
  template <class Keep, class Position>
  std::vector<double> expected(size_t layer, size_t token, size_t head, Keep keep,
                               Position query_position) {
    const size_t head_dim = config_.head_dim, kv_head = head / (config_.n_head / config_.n_kv_head);
    std::vector<double> sum(head_dim), logits(token + 1, -INFINITY);
    double top = -INFINITY, mass = 0.0;
    for (size_t key = 0; key <= token; ++key) {
      if (!keep(key)) continue;
      const auto q_row = rotated(q(layer, token) + head * head_dim, query_position(key));
      const auto k_row = rotated(k(layer, key) + kv_head * head_dim, static_cast<int32_t>(key));
      double dot = 0.0;
      for (size_t i = 0; i < head_dim; ++i) dot += q_row[i] * k_row[i];
      logits[key] = dot * config_.attention_scale;
      if (config_.attention_soft_cap > 0) {
        logits[key] =
            config_.attention_soft_cap * std::tanh(logits[key] / config_.attention_soft_cap);
      }
      top = std::max(top, logits[key]);
    }
    for (size_t key = 0; key <= token; ++key) {
      const double weight = std::exp(logits[key] - top);
      if (!(weight > 0.0)) continue;
      mass += weight;
      for (size_t i = 0; i < head_dim; ++i) {
        sum[i] += weight * v(layer, key)[kv_head * head_dim + i];
      }
    }
    for (double& value : sum) value /= mass;
    return sum;
  }

 private:
  float* at(std::vector<float>& values, size_t layer, size_t token, size_t heads) {
    return &values[(layer * tokens_ + token) * heads * config_.head_dim];
  }
  std::vector<double> rotated(const float* x, int32_t position) const {
    std::vector<float> cos_sin(rope_.pairs() * 2);
    rope_.cos_sin(position, cos_sin.data());
    std::vector<double> out(x, x + config_.head_dim);
    for (size_t pair = 0; pair < rope_.pairs(); ++pair) {
      const double c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1];
      out[2 * pair] = x[2 * pair] * c - x[2 * pair + 1] * s;
      out[2 * pair + 1] = x[2 * pair] * s + x[2 * pair + 1] * c;
    }
    return out;
  }

  ModelConfig config_;
  RopeTable rope_;
  ThreadPool pool_;
  std::vector<const RopeTable*> ropes_;
  CpuExecutor executor_;
  size_t tokens_;
  std::unique_ptr<PagePool> pages_;
  std::vector<float> q_, k_, v_;  // [layers][tokens][heads, head_dim]
};

/// Float rounding of a softmax-weighted sum of normal values over float keys.
inline constexpr double kFloatTolerance = 2e-5;

}  // namespace reprise::testing

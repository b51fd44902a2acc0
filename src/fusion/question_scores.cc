#include "fusion/question_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/key_logits.h"
#include "kernels/ops.h"
#include "kernels/softmax.h"

namespace reprise {
namespace {

constexpr size_t kTaskRows = 16;            // queries that read keys together
constexpr size_t kTaskKeys = 512;           // of which a task sums the weights
constexpr size_t kMostWeights = 4u << 20u;  // that are held at once

// Keys of a layer up to the question's last one, and how they and its queries are rotated.
class Logits {
 public:
  Logits(const QuestionKeys& keys, const QuestionRows& question, ThreadPool& pool)
      : keys_(keys), rotation_(keys.ropes) {
    const auto end = static_cast<size_t>(question.rows.back().position) + 1;
    pages_ = (end + kPageTokens - 1) / kPageTokens;
    rotation_.begin(question.rows, pool);
    if (!keys.rotated) rotation_.reserve_positions(keys.layer, count(), pool);
  }

  /// In whole pages.
  size_t count() const { return pages_ * kPageTokens; }
  size_t pairs() const { return rotation_.rope(keys_.layer).pairs(); }
  const float* angles(size_t row) const { return rotation_.row(keys_.layer, row); }

  /// args: all but what is read. out: [rows, count()].
  void read(uint32_t head, kernels::KeyLogitsArgs args) const {
    const kernels::KvLayout& layout = keys_.kv.pool().layout();
    std::vector<kernels::PageSpan> spans(pages_);
    for (size_t page = 0; page < pages_; ++page) {
      spans[page].k = keys_.kv.page(keys_.layer, page) + layout.k_offset(head);
      if (keys_.rotated) continue;
      spans[page].cos_sin = rotation_.keys(keys_.layer, static_cast<int32_t>(page * kPageTokens));
    }
    args.layout = &layout;
    args.pages = spans;
    args.rope_pairs = pairs();
    args.out_stride = count();
    kernels::key_logits(args);
  }

 private:
  const QuestionKeys& keys_;
  RotationCache rotation_;
  size_t pages_ = 0;
};

// The rotated queries of a row, summed over the heads that share a KV head: q.k summed over heads
// is linear in q.
void sum_groups(const ModelConfig& config, const float* angles, size_t pairs, const float* q,
                std::vector<float>& rotated, float* out) {
  const size_t head_dim = config.head_dim, group = config.n_head / config.n_kv_head;
  rotated.assign(q, q + config.n_head * head_dim);
  kernels::rope(rotated.data(), angles, config.n_head, head_dim, pairs);
  std::fill_n(out, config.n_kv_head * head_dim, 0.0f);
  for (size_t head = 0; head < config.n_head; ++head) {
    kernels::add_scaled(out + head / group * head_dim, &rotated[head * head_dim], 1.0f, head_dim);
  }
}

// Weights of some rows of the question, head by head.
class HeadWeights {
 public:
  HeadWeights(const QuestionKeys& keys, const QuestionRows& question, const Logits& logits)
      : keys_(keys),
        question_(question),
        logits_(logits),
        group_(keys.config.n_head / keys.config.n_kv_head),
        task_rows_(std::max<size_t>(1, kTaskRows / group_)) {
    const size_t row = keys.config.n_head * logits.count();
    most_rows_ = std::clamp<size_t>(kMostWeights / row, 1, question.rows.size());
    weights_.resize(most_rows_ * row);
  }

  size_t most_rows() const { return most_rows_; }

  /// Of rows [first, first + rows), at most most_rows().
  void read(size_t first, size_t rows, ThreadPool& pool) {
    rows_ = rows;
    const size_t heads = keys_.config.n_kv_head, tasks = (rows + task_rows_ - 1) / task_rows_;
    pool.run(tasks * heads, [&](size_t task, int) {
      const size_t begin = task / heads * task_rows_;
      read_task(first, begin, std::min(rows, begin + task_rows_),
                static_cast<uint32_t>(task % heads));
    });
  }

  /// Adds up the weights of keys [begin, begin + sums.size()) by the heads that share a KV head.
  void add(uint32_t head, size_t begin, std::span<float> sums) const {
    const float* row = &weights_[head * rows_ * group_ * logits_.count() + begin];
    for (size_t i = 0; i < rows_ * group_; ++i) {
      kernels::add_scaled(sums.data(), row + i * logits_.count(), 1.0f, sums.size());
    }
  }

 private:
  void read_task(size_t first, size_t begin, size_t end, uint32_t head) {
    const size_t head_dim = keys_.config.head_dim, width = keys_.config.n_head * head_dim;
    std::vector<float> q;  // [rows, group, head_dim]
    for (size_t row = begin; row < end; ++row) {
      const float* from = question_.q + (first + row) * width + head * group_ * head_dim;
      q.insert(q.end(), from, from + group_ * head_dim);
      kernels::rope(&q[q.size() - group_ * head_dim], logits_.angles(first + row), group_, head_dim,
                    logits_.pairs());
    }
    kernels::KeyLogitsArgs args;
    args.rows = (end - begin) * group_;
    args.q = q.data();
    args.q_stride = head_dim;
    args.scale = keys_.config.attention_scale;
    args.soft_cap = keys_.config.attention_soft_cap;
    args.out = &weights_[(head * rows_ + begin) * group_ * logits_.count()];
    logits_.read(head, args);
    for (size_t i = 0; i < args.rows; ++i) {
      const int32_t position = question_.rows[first + begin + i / group_].position;
      kernels::softmax(args.out + i * logits_.count(), static_cast<size_t>(position) + 1);
    }
  }

  const QuestionKeys& keys_;
  const QuestionRows& question_;
  const Logits& logits_;
  const size_t group_, task_rows_;
  size_t most_rows_ = 0, rows_ = 0;
  std::vector<float> weights_;  // [n_kv_head, rows, group, keys]
};

// Of the first keys: [n_kv_head, count].
std::vector<float> value_norms(const QuestionKeys& keys, size_t count, ThreadPool& pool) {
  const kernels::KvLayout& layout = keys.kv.pool().layout();
  std::vector<float> norms(layout.n_kv_head * count);
  pool.run((count + kTaskKeys - 1) / kTaskKeys, [&](size_t task, int) {
    std::vector<float> value(layout.head_dim);
    const size_t end = std::min(count, (task + 1) * kTaskKeys);
    for (size_t at = task * kTaskKeys; at < end; ++at) {
      const std::byte* page = keys.kv.page(keys.layer, at / kPageTokens);
      for (uint32_t head = 0; head < layout.n_kv_head; ++head) {
        kernels::load_v(layout, page + layout.v_offset(head), at % kPageTokens, value.data());
        norms[head * count + at] =
            std::sqrt(std::transform_reduce(value.begin(), value.end(), value.begin(), 0.0f));
      }
    }
  });
  return norms;
}

std::vector<float> scores_at(std::span<const int32_t> candidates, std::span<const float> sums) {
  std::vector<float> scores;
  for (const int32_t at : candidates) scores.push_back(sums[static_cast<size_t>(at)]);
  return scores;
}

}  // namespace

std::vector<float> joint_attention(const QuestionKeys& keys, const QuestionRows& question,
                                   ThreadPool& pool) {
  const ModelConfig& config = keys.config;
  const auto first_own = static_cast<size_t>(question.rows.front().position);
  // Before the question only candidates count.
  std::vector<float> bias(first_own, -std::numeric_limits<float>::infinity());
  for (const int32_t at : keys.candidates) bias[static_cast<size_t>(at)] = 0.0f;
  const Logits from(keys, question, pool);
  const size_t width = config.n_kv_head * config.head_dim;
  const size_t tasks = (question.rows.size() + kTaskRows - 1) / kTaskRows;
  std::vector<std::vector<float>> parts(tasks);  // [first_own]
  pool.run(tasks, [&](size_t task, int) {
    const size_t first = task * kTaskRows;
    const size_t rows = std::min(kTaskRows, question.rows.size() - first);
    std::vector<float> q(rows * width), spare, logits(rows * from.count());
    for (size_t row = 0; row < rows; ++row) {
      sum_groups(config, from.angles(first + row), from.pairs(),
                 question.q + (first + row) * config.n_head * config.head_dim, spare,
                 &q[row * width]);
    }
    kernels::KeyLogitsArgs args;
    args.rows = rows;
    args.q_stride = width;
    args.scale = 1.0f / std::sqrt(static_cast<float>(config.n_head * config.head_dim));
    args.out = logits.data();
    for (uint32_t head = 0; head < config.n_kv_head; ++head) {
      args.q = &q[head * config.head_dim];
      args.accumulate = head > 0;
      from.read(head, args);
    }
    parts[task].resize(first_own);
    for (size_t row = 0; row < rows; ++row) {
      float* weights = &logits[row * from.count()];
      kernels::add_scaled(weights, bias.data(), 1.0f, first_own);
      kernels::softmax(weights, static_cast<size_t>(question.rows[first + row].position) + 1);
      kernels::add_scaled(parts[task].data(), weights, 1.0f, first_own);
    }
  });
  std::vector<float> sums(first_own);
  for (const auto& part : parts) kernels::add_scaled(sums.data(), part.data(), 1.0f, first_own);
  return scores_at(keys.candidates, sums);
}

std::vector<float> head_attention(const QuestionKeys& keys, const QuestionRows& question,
                                  ThreadPool& pool) {
  const auto first_own = static_cast<size_t>(question.rows.front().position);
  const Logits logits(keys, question, pool);
  HeadWeights weights(keys, question, logits);
  const std::vector<float> norms = value_norms(keys, first_own, pool);
  std::vector<float> sums(first_own);
  for (size_t first = 0; first < question.rows.size(); first += weights.most_rows()) {
    const size_t rows = std::min(weights.most_rows(), question.rows.size() - first);
    weights.read(first, rows, pool);
    pool.run((first_own + kTaskKeys - 1) / kTaskKeys, [&](size_t task, int) {
      const size_t begin = task * kTaskKeys, count = std::min(kTaskKeys, first_own - begin);
      std::vector<float> of_head(count);
      for (uint32_t head = 0; head < keys.config.n_kv_head; ++head) {
        std::ranges::fill(of_head, 0.0f);
        weights.add(head, begin, of_head);
        const float* norm = &norms[head * first_own + begin];
        for (size_t i = 0; i < count; ++i) sums[begin + i] += of_head[i] * norm[i];
      }
    });
  }
  return scores_at(keys.candidates, sums);
}

}  // namespace reprise

#include "fusion/row_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/key_logits.h"
#include "kernels/ops.h"
#include "kernels/softmax.h"

namespace reprise {
namespace {

constexpr size_t kTaskRows = 16;

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

// Larger scores come first; equal ones are equal. Integers are compared in a fraction of the time.
uint32_t rank_of(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // no negative zero
  const uint32_t ascending = bits >> 31 != 0 ? ~bits : bits | 1u << 31;
  return ~ascending;
}

}  // namespace

std::vector<float> question_attention(const ModelConfig& config,
                                      std::span<const RopeTable* const> ropes, uint32_t layer,
                                      const QuestionRows& question, const SequenceKv& kv,
                                      std::span<const int32_t> candidates, bool rotated,
                                      ThreadPool& pool) {
  const auto first_own = static_cast<size_t>(question.rows.front().position);
  const auto end = static_cast<size_t>(question.rows.back().position) + 1;
  const size_t pages = (end + kPageTokens - 1) / kPageTokens, keys = pages * kPageTokens;
  // Before the question only candidates count.
  std::vector<float> bias(first_own, -std::numeric_limits<float>::infinity());
  for (const int32_t at : candidates) bias[static_cast<size_t>(at)] = 0.0f;
  RotationCache rotation(ropes);
  rotation.begin(question.rows, pool);
  if (!rotated) rotation.reserve_positions(layer, keys, pool);
  const size_t pairs = rotation.rope(layer).pairs();
  const kernels::KvLayout& layout = kv.pool().layout();
  const size_t head_dim = config.head_dim, width = config.n_kv_head * head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(config.n_head * head_dim));
  const size_t tasks = (question.rows.size() + kTaskRows - 1) / kTaskRows;
  std::vector<std::vector<float>> sums(tasks);  // [first_own]
  pool.run(tasks, [&](size_t task, int) {
    const size_t first = task * kTaskRows;
    const size_t rows = std::min(kTaskRows, question.rows.size() - first);
    std::vector<float> q(rows * width), spare, logits(rows * keys);
    for (size_t row = 0; row < rows; ++row) {
      sum_groups(config, rotation.row(layer, first + row), pairs,
                 question.q + (first + row) * config.n_head * head_dim, spare, &q[row * width]);
    }
    std::vector<kernels::PageSpan> spans(pages);
    for (uint32_t head = 0; head < config.n_kv_head; ++head) {
      for (size_t page = 0; page < pages; ++page) {
        spans[page].k = kv.page(layer, page) + layout.k_offset(head);
        if (!rotated) {
          spans[page].cos_sin = rotation.keys(layer, static_cast<int32_t>(page * kPageTokens));
        }
      }
      kernels::KeyLogitsArgs args;
      args.layout = &layout;
      args.rows = rows;
      args.q = &q[head * head_dim];
      args.q_stride = width;
      args.pages = spans;
      args.scale = scale;
      args.rope_pairs = pairs;
      args.accumulate = head > 0;
      args.out = logits.data();
      args.out_stride = keys;
      kernels::key_logits(args);
    }
    sums[task].resize(first_own);
    for (size_t row = 0; row < rows; ++row) {
      float* weights = &logits[row * keys];
      kernels::add_scaled(weights, bias.data(), 1.0f, first_own);
      kernels::softmax(weights, static_cast<size_t>(question.rows[first + row].position) + 1);
      kernels::add_scaled(sums[task].data(), weights, 1.0f, first_own);
    }
  });
  std::vector<float> scores;
  for (const int32_t at : candidates) {
    double sum = 0.0;
    for (const auto& part : sums) sum += part[static_cast<size_t>(at)];
    scores.push_back(static_cast<float>(sum));
  }
  return scores;
}

std::vector<float> pooled(std::span<const float> scores, size_t count) {
  const auto size = static_cast<std::ptrdiff_t>(scores.size());
  const auto before = static_cast<std::ptrdiff_t>((count - 1) / 2);
  const auto after = static_cast<std::ptrdiff_t>(count) - before;
  std::vector<float> out(scores.size());
  for (std::ptrdiff_t i = 0; i < size; ++i) {
    const auto first = scores.begin() + std::max<std::ptrdiff_t>(0, i - before);
    const auto last = scores.begin() + std::min(size, i + after);
    out[static_cast<size_t>(i)] = std::accumulate(first, last, 0.0f) / static_cast<float>(count);
  }
  return out;
}

std::vector<float> value_deviation(uint32_t layer, std::span<const Row> rows, const float* v,
                                   const SequenceKv& kv, ThreadPool& pool) {
  const kernels::KvLayout& layout = kv.pool().layout();
  const size_t head_dim = layout.head_dim;
  std::vector<float> out(rows.size());
  pool.run((rows.size() + kTaskRows - 1) / kTaskRows, [&](size_t task, int) {
    std::vector<float> stored(head_dim);
    const size_t end = std::min(rows.size(), (task + 1) * kTaskRows);
    for (size_t row = task * kTaskRows; row < end; ++row) {
      const auto position = static_cast<size_t>(rows[row].position);
      const std::byte* page = kv.page(layer, position / kPageTokens);
      for (uint32_t head = 0; head < layout.n_kv_head; ++head) {
        kernels::load_v(layout, page + layout.v_offset(head), position % kPageTokens,
                        stored.data());
        const float* fresh = v + (row * layout.n_kv_head + head) * head_dim;
        for (size_t d = 0; d < head_dim; ++d) {
          const float difference = fresh[d] - stored[d];
          out[row] += difference * difference;
        }
      }
    }
  });
  return out;
}

std::vector<float> scores_of(std::span<const int32_t> candidates,
                             std::span<const int32_t> positions, std::span<const float> scores) {
  std::vector<float> out;
  size_t row = 0;
  for (const int32_t candidate : candidates) {
    while (positions[row] < candidate) ++row;
    out.push_back(scores[row]);
  }
  return out;
}

void put_first(std::span<const int32_t> positions, std::span<const int32_t> candidates,
               std::span<float> scores) {
  size_t i = 0;
  for (const int32_t position : positions) {
    while (candidates[i] < position) ++i;
    scores[i] = std::numeric_limits<float>::infinity();
  }
}

std::vector<int32_t> best_positions(std::span<const float> scores,
                                    std::span<const int32_t> candidates, float ratio) {
  // What was typed: the nearest float may be just below it.
  const auto millionths = static_cast<size_t>(std::lround(static_cast<double>(ratio) * 1e6));
  const size_t wanted = millionths * candidates.size() / 1'000'000;
  if (wanted >= candidates.size()) return {candidates.begin(), candidates.end()};
  std::vector<uint64_t> ranks;
  for (size_t i = 0; i < candidates.size(); ++i) {
    ranks.push_back(uint64_t{rank_of(scores[i])} << 32 | i);
  }
  std::vector<uint64_t> order = ranks;
  const auto first_left = order.begin() + static_cast<std::ptrdiff_t>(wanted);
  std::nth_element(order.begin(), first_left, order.end());
  std::vector<int32_t> chosen;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (ranks[i] < *first_left) chosen.push_back(candidates[i]);
  }
  return chosen;
}

}  // namespace reprise

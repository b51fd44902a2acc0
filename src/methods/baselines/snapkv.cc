#include "methods/baselines/snapkv.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "methods/top_k.h"

namespace reprise {
namespace {

void pool_votes(const SnapKvOptions& options, std::span<const float> votes,
                std::vector<float>& pooled) {
  const size_t before = options.kernel / 2, after = options.kernel - before;
  pooled.resize(votes.size());
  for (size_t i = 0; i < votes.size(); ++i) {
    const size_t first = i - std::min(i, before), last = std::min(votes.size(), i + after);
    const auto near = votes.subspan(first, last - first);
    pooled[i] = options.pool == "max" ? *std::max_element(near.begin(), near.end())
                                      : std::accumulate(near.begin(), near.end(), 0.0f) /
                                            static_cast<float>(options.kernel);
  }
}

}  // namespace

std::vector<float> snapkv_scores(const SnapKvOptions& options,
                                 std::span<const std::vector<float>> votes) {
  std::vector<float> scores(votes.front().size()), pooled;
  for (const std::vector<float>& head : votes) {
    pool_votes(options, head, pooled);
    for (size_t i = 0; i < scores.size(); ++i) {
      scores[i] = options.group == "max" ? std::max(scores[i], pooled[i]) : scores[i] + pooled[i];
    }
  }
  return scores;  // the sum ranks like the mean
}

SnapKvPolicy::SnapKvPolicy(const SnapKvOptions& options, const ModelConfig& config)
    : EvictingPolicy(config, options.budget),
      options_(options),
      budget_(static_cast<int32_t>(options.budget)),
      window_(static_cast<int32_t>(std::min(options.window, options.budget))),
      layers_(config.n_layer) {}

void SnapKvPolicy::select(const QueryRows& rows, Selection& selection) {
  Layer& layer = layers_[rows.layer];
  if (!layer.keep.empty()) compress(rows, layer);
  read_kept(rows, selection);
  if (rows.phase != kernels::Phase::kPrefill) return;
  collect_queries(rows, layer);
  if (rows.end() != rows.prompt_end) return;
  if (keys(rows.layer, rows.end()).count() > options_.budget) choose(rows, layer);
  layer.q = {};
}

int32_t SnapKvPolicy::window(int32_t prompt_end) const {
  if (!by_question()) return window_;
  return std::clamp(prompt_end - documents_.end, 1, std::max(1, budget_ / 2));
}

void SnapKvPolicy::collect_queries(const QueryRows& rows, Layer& layer) const {
  const size_t width = shape_.n_head * shape_.head_dim;
  const int32_t first = std::max(rows.first(), rows.prompt_end - window(rows.prompt_end));
  if (first >= rows.end()) return;
  if (layer.q_end != first) layer.q.clear();
  const float* q = rows.q_rotated + static_cast<size_t>(first - rows.first()) * width;
  layer.q.insert(layer.q.end(), q, q + static_cast<size_t>(rows.end() - first) * width);
  layer.q_end = rows.end();
}

void SnapKvPolicy::choose(const QueryRows& rows, Layer& layer) const {
  const size_t width = shape_.n_head * shape_.head_dim, group = shape_.group;
  const size_t count = keys(rows.layer, rows.end()).count();
  const auto window = static_cast<size_t>(this->window(rows.prompt_end));
  const auto always = static_cast<size_t>(this->always());
  const size_t voters = std::min(window, layer.q.size() / width);
  const float* q = layer.q.data() + layer.q.size() - voters * width;
  const KeptScores scores = this->scores(rows);
  std::vector<std::vector<float>> votes(shape_.n_head);  // [n_head][count - window]
  rows.pool->run(shape_.n_head, [&](size_t head, int) {
    votes[head].assign(count - window, 0.0f);
    const auto first = rows.end() - static_cast<int32_t>(voters);
    scores.for_each({q + head * shape_.head_dim, width, voters, first, head, 1},
                    [&](std::span<const float> p) {
                      for (size_t i = 0; i < votes[head].size(); ++i) votes[head][i] += p[i];
                    });
  });
  layer.keep.resize(shape_.n_kv_head);
  layer.keep_end = rows.end();
  rows.pool->run(shape_.n_kv_head, [&](size_t head, int) {
    std::vector<int32_t>& keep = layer.keep[head];
    auto ranked = snapkv_scores(options_, std::span(votes).subspan(head * group, group));
    std::fill_n(ranked.begin(), std::min(always, ranked.size()),
                std::numeric_limits<float>::infinity());
    top_k(ranked, options_.budget - window, keep);
    for (size_t i = count - window; i < count; ++i) keep.push_back(static_cast<int32_t>(i));
  });
}

void SnapKvPolicy::compress(const QueryRows& rows, Layer& layer) {
  std::vector<int32_t> slots(options_.budget);
  std::iota(slots.begin(), slots.end(), 0);
  if (!side_.own(rows.kv->pool(), rows.layer, slots)) {
    ++fallbacks_;
    return;
  }
  Kept& kept = kept_[rows.layer];
  rows.pool->run(shape_.n_kv_head, [&](size_t head, int) {
    for (const int32_t slot : slots) {  // a side token never moves up, so none is overwritten
      const int32_t key = layer.keep[head][static_cast<size_t>(slot)];
      if (key >= kept.side)
        side_.copy(rows.layer, head, *rows.kv, kept.begin + key - kept.side, slot);
      else if (key != slot)
        side_.move(rows.layer, head, key, slot);
    }
  });
  kept = {budget_, layer.keep_end, layer.keep_end};
  layer.keep = {};
}

void SnapKvPolicy::truncate(int32_t length) {
  EvictingPolicy::truncate(length);
  if (length < documents_.end) documents_ = {0, 0};
  for (Layer& layer : layers_) {
    if (layer.keep_end > length) layer.keep = {};
    if (layer.q_end > length) layer.q = {};
  }
}

uint64_t SnapKvPolicy::state_bytes() const {
  uint64_t bytes = side_.bytes();
  for (const Layer& layer : layers_) {
    bytes += layer.q.size() * sizeof(float);
    for (const auto& keep : layer.keep) bytes += keep.size() * sizeof(int32_t);
  }
  return bytes;
}

}  // namespace reprise

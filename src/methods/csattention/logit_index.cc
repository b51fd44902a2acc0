#include "methods/csattention/logit_index.h"

#include <algorithm>
#include <limits>

#include "kernels/key_logits.h"
#include "kernels/ops.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

constexpr int32_t kPieceTokens = 8192;  // candidates that one task scores

size_t whole_pages(size_t keys) { return (keys + kPageTokens - 1) / kPageTokens; }

}  // namespace

LogitIndex::LogitIndex(const ModelConfig& config, int32_t unit)
    : config_(&config),
      unit_(unit),
      ranking_(config.n_head, config.n_kv_head),
      q_(size_t{config.n_head} * config.head_dim) {}

uint64_t LogitIndex::find(const QueryRows& rows, KeyRange candidates, size_t k, KeyPicks& picks) {
  const auto count = static_cast<size_t>(candidates.end - candidates.begin);
  const size_t units = count / static_cast<size_t>(unit_),
               others = whole_pages(units) * kPageTokens,
               sink_pages = whole_pages(static_cast<size_t>(candidates.begin));
  const auto block = static_cast<size_t>(candidates.end) / kPageTokens;
  const size_t recent_pages = whole_pages(static_cast<size_t>(rows.end())) - block;
  ranking_.resize(others + (sink_pages + recent_pages) * kPageTokens);
  score(rows, candidates, units, others);
  ranking_.rank(*rows.pool, HeadJoin::kSoftmax, units, k);
  picks.resize(config_->n_kv_head);
  for (size_t head = 0; head < picks.size(); ++head) {
    const auto found = ranking_.picks(head);
    picks[head].assign(found.begin(), found.end());
  }
  return config_->n_kv_head * (sink_pages + recent_pages) * rows.kv->pool().layout().tile_bytes() +
         bytes_read(count);
}

void LogitIndex::score(const QueryRows& rows, KeyRange candidates, size_t units, size_t others) {
  for (size_t i = 0; i < q_.size(); ++i) q_[i] = rows.q_rotated[i] * config_->attention_scale;
  const int32_t count = candidates.end - candidates.begin;
  const auto pieces = static_cast<size_t>((count + kPieceTokens - 1) / kPieceTokens);
  rows.pool->run(config_->n_kv_head * pieces, [&](size_t task, int) {
    const size_t head = task / pieces;
    const int32_t first = candidates.begin + static_cast<int32_t>(task % pieces) * kPieceTokens;
    score_candidates(rows, head, {first, std::min(first + kPieceTokens, candidates.end)},
                     static_cast<size_t>(first - candidates.begin) / static_cast<size_t>(unit_));
    if (task % pieces == 0) score_others(rows, head, candidates, units, others);
  });
}

// Logits of units from number `first` on.
void LogitIndex::score_candidates(const QueryRows& rows, size_t head, KeyRange keys, size_t first) {
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  float* logits = ranking_.logits(head * group) + first;
  const auto score = unit_ > 1 ? &LogitIndex::estimate_pages : &LogitIndex::estimate;
  (this->*score)(rows.layer, head, &q_[head * group * dim], keys, logits, ranking_.stride());
  if (config_->attention_soft_cap <= 0.0f) return;
  for (size_t row = 0; row < group; ++row) {
    kernels::soft_cap(logits + row * ranking_.stride(),
                      static_cast<size_t>((keys.end - keys.begin) / unit_),
                      config_->attention_soft_cap);
  }
}

void LogitIndex::estimate_pages(uint32_t layer, size_t kv_head, const float* q, KeyRange keys,
                                float* tops, size_t stride) const {
  const auto count = static_cast<size_t>(keys.end - keys.begin);
  std::vector<float> logits(config_->n_head / config_->n_kv_head * count);
  estimate(layer, kv_head, q, keys, logits.data(), count);
  for (size_t i = 0; i < logits.size(); i += kPageTokens) {
    tops[i / count * stride + i % count / kPageTokens] =
        *std::max_element(&logits[i], &logits[i] + kPageTokens);
  }
}

// Exact logits of the keys before and after the candidates, from slot `others` on; the slots
// between these and the units stay empty.
void LogitIndex::score_others(const QueryRows& rows, size_t head, KeyRange candidates, size_t units,
                              size_t others) {
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  for (size_t row = head * group; row < (head + 1) * group; ++row) {
    std::fill(ranking_.logits(row) + units, ranking_.logits(row) + others,
              -std::numeric_limits<float>::infinity());
  }
  std::vector<kernels::PageSpan> pages, recent;
  list_pages(rows, head, 0, candidates.begin, pages);
  list_pages(rows, head, candidates.end, rows.end(), recent);
  pages.insert(pages.end(), recent.begin(), recent.end());
  kernels::KeyLogitsArgs args;
  args.layout = &rows.kv->pool().layout();
  args.rows = group;
  args.q = rows.q_rotated + head * group * dim;
  args.q_stride = dim;
  args.pages = pages;
  args.scale = config_->attention_scale;
  args.soft_cap = config_->attention_soft_cap;
  args.out = ranking_.logits(head * group) + others;
  args.out_stride = ranking_.stride();
  kernels::key_logits(args);
}

}  // namespace reprise

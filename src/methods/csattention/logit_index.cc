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
  score_candidates(rows, candidates);
  const uint64_t bytes = score_others(rows, candidates, units, others);
  ranking_.rank(*rows.pool, HeadJoin::kSoftmax, units, k);
  picks.resize(config_->n_kv_head);
  for (size_t head = 0; head < picks.size(); ++head) {
    const auto found = ranking_.picks(head);
    picks[head].assign(found.begin(), found.end());
  }
  return bytes + bytes_read(count);
}

void LogitIndex::score_candidates(const QueryRows& rows, KeyRange candidates) {
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  for (size_t i = 0; i < q_.size(); ++i) q_[i] = rows.q_rotated[i] * config_->attention_scale;
  const int32_t count = candidates.end - candidates.begin;
  const auto pieces = static_cast<size_t>((count + kPieceTokens - 1) / kPieceTokens);
  rows.pool->run(config_->n_kv_head * pieces, [&](size_t task, int) {
    const size_t head = task / pieces;
    const int32_t offset = static_cast<int32_t>(task % pieces) * kPieceTokens;
    const int32_t keys = std::min(count - offset, kPieceTokens);
    float* logits = ranking_.logits(head * group) + offset / unit_;
    const int32_t first = candidates.begin + offset;
    const auto score = unit_ > 1 ? &LogitIndex::estimate_pages : &LogitIndex::estimate;
    (this->*score)(rows.layer, head, &q_[head * group * dim], {first, first + keys}, logits,
                   ranking_.stride());
    if (config_->attention_soft_cap <= 0.0f) return;
    for (size_t row = 0; row < group; ++row) {
      kernels::soft_cap(logits + row * ranking_.stride(), static_cast<size_t>(keys / unit_),
                        config_->attention_soft_cap);
    }
  });
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

// Exact logits of the keys before and after the candidates, from slot first on; the slots between
// these and the units stay empty. Returns the bytes of their keys.
uint64_t LogitIndex::score_others(const QueryRows& rows, KeyRange candidates, size_t units,
                                  size_t first) {
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  std::vector<size_t> pages_read(config_->n_kv_head);
  rows.pool->run(config_->n_kv_head, [&](size_t head, int) {
    for (size_t row = head * group; row < (head + 1) * group; ++row) {
      std::fill(ranking_.logits(row) + units, ranking_.logits(row) + first,
                -std::numeric_limits<float>::infinity());
    }
    std::vector<kernels::PageSpan> pages, recent;
    list_pages(rows, head, 0, candidates.begin, pages);
    list_pages(rows, head, candidates.end, rows.end(), recent);
    pages.insert(pages.end(), recent.begin(), recent.end());
    pages_read[head] = pages.size();
    kernels::KeyLogitsArgs args;
    args.layout = &rows.kv->pool().layout();
    args.rows = group;
    args.q = rows.q_rotated + head * group * dim;
    args.q_stride = dim;
    args.pages = pages;
    args.scale = config_->attention_scale;
    args.soft_cap = config_->attention_soft_cap;
    args.out = ranking_.logits(head * group) + first;
    args.out_stride = ranking_.stride();
    kernels::key_logits(args);
  });
  return config_->n_kv_head * pages_read[0] * rows.kv->pool().layout().tile_bytes();
}

}  // namespace reprise

#include "methods/attention_predictor/block_scores.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/key_logits.h"
#include "kernels/softmax.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

size_t blocks_before(int32_t end) {
  return (static_cast<size_t>(end) + kPageTokens - 1) / kPageTokens;
}

}  // namespace

void BlockScores::add_head(std::span<const int32_t> pages, std::span<const float> weights,
                           float* scores, uint8_t* read) const {
  const float share = static_cast<float>(config_->n_kv_head) / static_cast<float>(config_->n_head);
  const float* weight = weights.data();
  for (size_t i = 0; i < pages.size(); ++i, weight += kPageTokens) {
    float sum = 0.0f, largest = 0.0f;
    for (size_t slot = 0; slot < kPageTokens; ++slot) {
      sum += weight[slot];
      largest = std::max(largest, weight[slot]);
    }
    const auto block = static_cast<size_t>(pages[i]);
    scores[block] += share * (pool_ == BlockPool::kSum ? sum : largest);
    read[block] = 1;
  }
}

void BlockScores::of_read(const QueryRows& rows, KeyLogits& logits, ScoreRow& row) const {
  row.reset(config_->n_kv_head, blocks_before(rows.end()));
  const size_t group = config_->n_head / config_->n_kv_head;
  for (size_t head = 0; head < config_->n_head; ++head) {
    const size_t list = head / logits.heads, at = head / group * row.blocks;
    const auto pages = logits.list(list);
    const auto values = logits.of(list, head % logits.heads);
    kernels::softmax(values.data(), values.size());
    add_head(pages, values, &row.scores[at], &row.read[at]);
  }
}

uint64_t BlockScores::of_all(const QueryRows& rows, int32_t first,
                             std::span<ScoreRow> scores) const {
  const size_t group = config_->n_head / config_->n_kv_head, dim = config_->head_dim;
  const size_t width = config_->n_head * dim;
  const int32_t end = first + static_cast<int32_t>(scores.size());
  for (size_t r = 0; r < scores.size(); ++r) {
    scores[r].reset(config_->n_kv_head, blocks_before(first + static_cast<int32_t>(r) + 1));
  }
  std::vector<int32_t> blocks(blocks_before(end));
  std::iota(blocks.begin(), blocks.end(), 0);
  const float* q = rows.q_rotated + static_cast<size_t>(first - rows.first()) * width;
  rows.pool->run(config_->n_kv_head, [&](size_t kv_head, int) {
    std::vector<kernels::PageSpan> pages;
    list_pages(rows, kv_head, 0, end, pages);
    const size_t stride = pages.size() * kPageTokens;
    std::vector<float> queries, weights(scores.size() * group * stride);
    for (size_t r = 0; r < scores.size(); ++r) {
      const float* own = q + r * width + kv_head * group * dim;
      queries.insert(queries.end(), own, own + group * dim);
    }
    kernels::KeyLogitsArgs args;
    args.layout = &rows.kv->pool().layout();
    args.rows = scores.size() * group;
    args.q = queries.data();
    args.q_stride = dim;
    args.pages = pages;
    args.scale = config_->attention_scale;
    args.soft_cap = config_->attention_soft_cap;
    args.out = weights.data();
    args.out_stride = stride;
    kernels::key_logits(args);
    for (size_t i = 0; i < args.rows; ++i) {
      ScoreRow& row = scores[i / group];
      const std::span own(&weights[i * stride], stride);
      const auto seen = static_cast<size_t>(first) + i / group + 1;
      std::fill(own.begin() + static_cast<std::ptrdiff_t>(seen), own.end(),
                -std::numeric_limits<float>::infinity());
      kernels::softmax(own.data(), own.size());
      add_head(std::span(blocks).first(row.blocks), own, &row.scores[kv_head * row.blocks],
               &row.read[kv_head * row.blocks]);
    }
  });
  return blocks.size() * config_->n_kv_head * rows.kv->pool().layout().tile_bytes();
}

}  // namespace reprise

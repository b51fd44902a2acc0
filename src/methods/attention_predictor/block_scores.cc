#include "methods/attention_predictor/block_scores.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "kernels/key_logits.h"
#include "kernels/softmax.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

size_t blocks_before(int32_t end) {
  return (static_cast<size_t>(end) + kPageTokens - 1) / kPageTokens;
}

/// Ends the blocks of a head. Those that came twice, of parts or query heads with lists of their
/// own, become one.
void end_head(ScoreRow& row) {
  const size_t first = row.offsets.back();
  const std::span read = std::span(row.read).subspan(first);
  if (!std::ranges::is_sorted(read, std::ranges::less_equal())) {
    std::map<int32_t, float> sums;
    for (size_t i = 0; i < read.size(); ++i) sums[read[i]] += row.scores[first + i];
    row.read.resize(first);
    row.scores.resize(first);
    for (const auto& [block, score] : sums) {
      row.read.push_back(block);
      row.scores.push_back(score);
    }
  }
  row.offsets.push_back(static_cast<uint32_t>(row.read.size()));
}

}  // namespace

void BlockScores::of_read(const QueryRows& rows, const PageShares& shares, ScoreRow& row) const {
  row.begin_part(config_->n_kv_head, blocks_before(rows.end()));
  const size_t group = config_->n_head / config_->n_kv_head;
  for (size_t list = 0; list < shares.lists(); ++list) {
    const auto pages = shares.list(list);
    const auto values = shares.of(list);
    row.read.insert(row.read.end(), pages.begin(), pages.end());
    const size_t first = row.scores.size();
    row.scores.resize(first + values.size());
    for (size_t i = 0; i < values.size(); ++i) row.scores[first + i] = share_ * values[i];
    if ((list + 1) * shares.heads % group == 0) end_head(row);
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
      kernels::add_page_shares(own.data(), row.blocks, pool_ == BlockPool::kMax, share_,
                               &row.scores[kv_head * row.blocks]);
    }
  });
  return blocks_before(end) * config_->n_kv_head * rows.kv->pool().layout().tile_bytes();
}

}  // namespace reprise

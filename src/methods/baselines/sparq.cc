#include "methods/baselines/sparq.h"

#include <algorithm>
#include <cmath>

#include "kernels/key_logits.h"
#include "methods/key_list.h"
#include "methods/top_k.h"

namespace reprise {
namespace {

constexpr int32_t kPieceTokens = 1024;  // keys that one task scores
constexpr size_t kLine = 64;            // bytes of a cache line

}  // namespace

SparqPolicy::SparqPolicy(const SparqOptions& options, const ModelConfig& config)
    : config_(&config),
      group_(config.n_head / config.n_kv_head),
      budget_(static_cast<int32_t>(options.budget)),
      local_(static_cast<int32_t>(std::min(options.local, options.budget))),
      pairs_(std::max(1u, (options.channels > 0 ? std::min(options.channels, config.head_dim)
                                                : config.head_dim / 4) /
                              2)),
      mean_(options.mean),
      join_(options.score == "raw" ? HeadJoin::kRaw : HeadJoin::kSoftmax),
      values_(config),
      ranking_(config.n_head, config.n_kv_head),
      q_(size_t{config.n_head} * config.head_dim),
      chosen_(config.n_kv_head) {}

void SparqPolicy::select(const QueryRows& rows, Selection& selection) {
  if (mean_) values_.update(rows);
  const int32_t end = rows.end();
  if (rows.phase == kernels::Phase::kPrefill || end <= budget_) return;
  for (size_t head = 0; head < config_->n_kv_head; ++head) choose_channels(rows.q_rotated, head);
  score_keys(rows);
  const int32_t recent = end - local_;
  ranking_.rank(*rows.pool, join_, static_cast<size_t>(recent),
                static_cast<size_t>(budget_ - local_));
  selection.all = false;
  SelectionPart& part = selection.parts.emplace_back();
  part.split = HeadSplit::kPerKvHead;
  for (size_t head = 0; head < config_->n_kv_head; ++head) {
    add_keys(part, 0, ranking_.picks(head), 0, {recent, end});
    const uint64_t pages = ranking_.stride() / kPageTokens;
    selection.index_bytes_read += pages * lines_read(rows.kv->pool().layout(), head) * kLine;
  }
  if (mean_) use_mean(rows, recent, selection.mean);
}

// The channels of a KV head, and its queries divided by their temperature: sqrt of the share of |q|
// that the channels hold (eq. 5; the rest of it is the model's own scale).
void SparqPolicy::choose_channels(const float* q, size_t kv_head) {
  const size_t dim = config_->head_dim;
  std::vector<float> weights(dim / 2);
  for (size_t i = kv_head * group_ * dim; i < (kv_head + 1) * group_ * dim; ++i) {
    weights[i % dim / 2] += std::fabs(q[i]);
  }
  std::vector<int32_t> best;
  top_k(weights, pairs_, best);
  chosen_[kv_head].assign(best.begin(), best.end());
  for (size_t head = kv_head * group_; head < (kv_head + 1) * group_; ++head) {
    const float* row = q + head * dim;
    float all = 0.0f, held = 0.0f;
    for (size_t d = 0; d < dim; ++d) all += std::fabs(row[d]);
    for (const uint16_t pair : chosen_[kv_head]) {
      held += std::fabs(row[2 * pair]) + std::fabs(row[2 * pair + 1]);
    }
    const float temperature = held > 0.0f ? std::sqrt(held / all) : 1.0f;
    for (size_t d = 0; d < dim; ++d) q_[head * dim + d] = row[d] / temperature;
  }
}

void SparqPolicy::score_keys(const QueryRows& rows) {
  const size_t dim = config_->head_dim;
  const int32_t end = rows.end();
  ranking_.resize(static_cast<size_t>(end));
  const auto pieces = static_cast<size_t>((end + kPieceTokens - 1) / kPieceTokens);
  rows.pool->run(config_->n_kv_head * pieces, [&](size_t task, int) {
    const size_t head = task / pieces;
    const int32_t first = static_cast<int32_t>(task % pieces) * kPieceTokens;
    std::vector<kernels::PageSpan> pages;
    list_pages(rows, head, first, std::min(end, first + kPieceTokens), pages);
    kernels::KeyLogitsArgs args;
    args.layout = &rows.kv->pool().layout();
    args.rows = group_;
    args.q = &q_[head * group_ * dim];
    args.q_stride = dim;
    args.pages = pages;
    args.pairs = chosen_[head];
    args.scale = config_->attention_scale;
    args.soft_cap = config_->attention_soft_cap;
    args.out = ranking_.logits(head * group_) + first;
    args.out_stride = ranking_.stride();
    kernels::key_logits(args);
  });
}

// Cache lines of one K tile that hold the channels of a KV head, and their scales.
uint64_t SparqPolicy::lines_read(const kernels::KvLayout& layout, size_t kv_head) const {
  const size_t dim = layout.head_dim;
  const bool scaled = kernels::has_scales(layout.type);
  const size_t element = scaled ? 1 : layout.tile_bytes() / (kPageTokens * dim);
  const size_t pair_bytes = 2 * kPageTokens * element;
  uint64_t lines = 0;
  // Bytes from one on, whose lines count unless one before them in the same part did.
  const auto count = [&](size_t from, size_t size, size_t& unread) {
    const size_t first = std::max(from / kLine, unread);
    unread = std::max(unread, (from + size + kLine - 1) / kLine);
    lines += unread - std::min(first, unread);
  };
  size_t unread = 0, unread_high = 0, unread_scale = 0;  // first line past those counted
  for (const uint16_t pair : chosen_[kv_head]) {
    count(pair * pair_bytes, pair_bytes, unread);
    if (layout.type == kernels::KvType::kBF12) {
      count(dim * kPageTokens + pair * pair_bytes / 2, pair_bytes / 2, unread_high);
    }
    if (scaled) {
      count(kernels::scales_offset(layout.type, dim, 2 * size_t{pair}), kLine, unread_scale);
    }
  }
  return lines;
}

// alpha is the weight that the approximate logits give to the keys that are read (eq. 6).
void SparqPolicy::use_mean(const QueryRows& rows, int32_t recent, MeanValue& mean) {
  values_.mean(rows.layer, mean.value);
  for (size_t head = 0; head < config_->n_head; ++head) {
    const float* weights = ranking_.weights(head);
    double alpha = 0.0;
    for (const int32_t key : ranking_.picks(head / group_)) alpha += weights[key];
    for (int32_t key = recent; key < rows.end(); ++key) alpha += weights[key];
    mean.alpha.push_back(static_cast<float>(std::clamp(alpha, 0.0, 1.0)));
  }
}

}  // namespace reprise

#include "methods/page_bounds.h"

#include <algorithm>
#include <cmath>

#include "base/float16.h"
#include "kernels/key_logits.h"

namespace reprise {
namespace {

constexpr size_t kPieceGroups = 64;  // groups of 16 pages that one task scores
constexpr size_t kTaskPages = kPageTokens;

uint16_t round_outward(float value, bool up) {
  Bf16 rounded = to_bf16(value);
  if (up ? to_float(rounded) < value : to_float(rounded) > value) {
    // One step of the bits away from zero or towards it, whichever is outward.
    const bool away = (value > 0.0f) == up;
    rounded.bits = static_cast<uint16_t>(rounded.bits + (away ? 1 : -1));
  }
  return rounded.bits;
}

}  // namespace

PageBounds::PageBounds(const ModelConfig& config)
    : n_head_(config.n_head),
      n_kv_head_(config.n_kv_head),
      layout_{kernels::KvType::kBF16, config.n_kv_head, config.head_dim},
      layers_(config.n_layer) {}

void PageBounds::update(const QueryRows& rows) {
  Layer& layer = layers_[rows.layer];
  const size_t first = layer.pages, end = static_cast<size_t>(rows.end()) / kPageTokens;
  if (first >= end) return;
  layer.heads.resize(n_kv_head_);
  const size_t groups = (end + kPageTokens - 1) / kPageTokens;
  for (auto& lines : layer.heads) {
    const size_t prompt_groups =
        static_cast<size_t>(rows.prompt_end) / kPageTokens / kTaskPages + 1;
    if (lines.empty()) lines.reserve(std::max(groups, prompt_groups) * group_lines());
    lines.resize(groups * group_lines());
  }
  const size_t first_group = first / kTaskPages;
  const auto take_group = [&](size_t task, int) {
    const size_t group = first_group + task / n_kv_head_, head = task % n_kv_head_;
    const size_t stop = std::min(end, (group + 1) * kTaskPages);
    for (size_t page = std::max(first, group * kTaskPages); page < stop; ++page) {
      take_page(rows, layer.heads[head], head, page);
    }
  };
  rows.pool->run((groups - first_group) * n_kv_head_, take_group);
  layer.pages = end;
}

void PageBounds::take_page(const QueryRows& rows, std::vector<Line>& lines, size_t head,
                           size_t page) const {
  const kernels::KvLayout& stored = rows.kv->pool().layout();
  std::vector<float> low(layout_.head_dim), high(layout_.head_dim);
  kernels::key_bounds(stored, rows.kv->page(rows.layer, page) + stored.k_offset(head),
                      kernels::kAllSlots, low.data(), high.data());
  Line* largest = &lines[page / kPageTokens * group_lines()];
  Line* smallest = largest + layout_.head_dim / 2;
  const size_t slot = page % kPageTokens;
  for (size_t d = 0; d < layout_.head_dim; ++d) {
    largest[d / 2].values[2 * slot + d % 2] = round_outward(high[d], true);
    smallest[d / 2].values[2 * slot + d % 2] = round_outward(low[d], false);
  }
}

uint64_t PageBounds::score(const QueryRows& rows, size_t pages, std::vector<float>& scores) {
  const size_t groups = (pages + kPageTokens - 1) / kPageTokens;
  const size_t pieces = (groups + kPieceGroups - 1) / kPieceGroups;
  scores.resize(n_kv_head_ * pages);
  bounds_.resize(n_head_ * groups * kPageTokens);
  split_query(rows.q_rotated);
  rows.pool->run(n_kv_head_ * pieces, [&](size_t task, int) {
    const size_t head = task / pieces, first = task % pieces * kPieceGroups;
    score_groups(layers_[rows.layer].heads[head], head, first,
                 std::min(groups, first + kPieceGroups), pages, &scores[head * pages]);
  });
  return n_kv_head_ * groups * group_lines() * sizeof(Line);
}

// The positive parts of the group's queries, then the negative ones.
void PageBounds::split_query(const float* q) {
  const size_t group = n_head_ / n_kv_head_, count = group * layout_.head_dim;
  q_parts_.resize(2 * n_kv_head_ * count);
  for (size_t head = 0; head < n_kv_head_; ++head) {
    float* positive = &q_parts_[2 * head * count];
    for (size_t i = 0; i < count; ++i) {
      const float value = q[head * count + i];
      positive[i] = std::max(value, 0.0f);
      positive[count + i] = std::min(value, 0.0f);
    }
  }
}

void PageBounds::score_groups(const std::vector<Line>& lines, size_t head, size_t first, size_t end,
                              size_t pages, float* scores) {
  const size_t group = n_head_ / n_kv_head_, count = group * layout_.head_dim;
  const size_t stride = (pages + kPageTokens - 1) / kPageTokens * kPageTokens;
  float* bounds = &bounds_[head * group * stride];
  kernels::PageSpan tiles[kPieceGroups];
  kernels::KeyLogitsArgs args;
  args.layout = &layout_;
  args.rows = group;
  args.q_stride = layout_.head_dim;
  args.pages = {tiles, end - first};
  args.out = bounds + first * kPageTokens;
  args.out_stride = stride;
  for (const size_t sign : {0, 1}) {
    for (size_t i = first; i < end; ++i) {
      const Line* tile = &lines[i * group_lines() + sign * layout_.head_dim / 2];
      tiles[i - first].k = reinterpret_cast<const std::byte*>(tile);
    }
    args.q = &q_parts_[(2 * head + sign) * count];
    args.accumulate = sign == 1;
    kernels::key_logits(args);
  }
  for (size_t page = first * kPageTokens; page < std::min(pages, end * kPageTokens); ++page) {
    scores[page] = bounds[page];
    for (size_t r = 1; r < group; ++r) {
      scores[page] = std::max(scores[page], bounds[r * stride + page]);
    }
  }
}

void PageBounds::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    layer.pages = std::min(layer.pages, static_cast<size_t>(length) / kPageTokens);
  }
}

uint64_t PageBounds::bytes() const {
  uint64_t lines = 0;
  for (const Layer& layer : layers_) {
    for (const auto& head : layer.heads) lines += head.capacity();
  }
  return lines * sizeof(Line);
}

}  // namespace reprise

#include "attention/pager.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
constexpr uint32_t kLookAhead = 8;  // layers whose missing pages are looked for again

void keep_one_of_each(std::vector<uint32_t>& blocks) {
  std::ranges::sort(blocks);
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
}

}  // namespace

void Pager::begin(std::span<const Row> rows, std::span<const SequenceStep> steps) {
  rows_ = rows;
  steps_ = steps;
  active_ = std::ranges::any_of(steps, [](const SequenceStep& step) { return step.kv->paged(); });
  std::erase_if(layers_, [&](const auto& known) {
    return !std::ranges::any_of(steps, [&](const SequenceStep& step) {
      return step.kv == known.first && step.kv->paged();
    });
  });
  if (!active_) return;
  held_.resize(std::max(held_.size(), steps.size()));
  read_.resize(held_.size());
  marks_.assign(steps.size(), {});
  read_marks_.assign(steps.size(), {});
  owners_.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    owners_.push_back(i > 0 && steps[i].kv == steps[i - 1].kv ? owners_.back() : i);
  }
  epoch_ = 1;
}

Pager::Layers& Pager::layers_of(const SequenceKv& kv) {
  Layers& layers = layers_[&kv];
  layers.resize(config_.n_layer);
  return layers;
}

Status Pager::hold(uint32_t layer, size_t index) {
  SequenceKv& kv = *steps_[index].kv;
  const auto table = kv.pages(layer);
  auto& marks = marks_[owners_[index]];
  auto& held = held_[owners_[index]];
  const size_t before = held.size();
  marks.resize(std::max(marks.size(), table.size()));
  pages_.clear();
  for (const uint32_t block : blocks_) {
    if (marks[block] == epoch_ || table[block] == kNoPage) continue;
    marks[block] = epoch_;
    pages_.push_back(table[block]);
    held.push_back(block);
  }
  if (pages_.empty()) return {};
  PagePool& pool = kv.pool();
  if (mode_ == Prefetch::kToken) {
    if (const uint64_t away = pool.away(layer, pages_); away > 0) {
      const uint32_t last = (layer + config_.n_layer - 1) % config_.n_layer;
      make_room(kv, last, config_.n_layer - 1, away, layers_of(kv)[layer].used);
      list_pages(kv, layer, std::span(held).subspan(before));
    }
  }
  Status status = pool.fetch(layer, pages_);
  if (!status) held.resize(before);
  return status;
}

Status Pager::hold_written(uint32_t layer) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const SequenceStep& step = steps_[i];
    if (!step.kv->paged()) continue;
    blocks_.clear();
    for (const Row& row : rows_.subspan(step.first_row, step.rows)) {
      const auto block = static_cast<uint32_t>(row.position / kTokens);
      if (blocks_.empty() || blocks_.back() != block) blocks_.push_back(block);
    }
    REPRISE_CHECK(hold(layer, i));
    for (const uint32_t block : blocks_) {
      step.kv->pool().will_write(layer, step.kv->pages(layer)[block]);
    }
  }
  return {};
}

Status Pager::hold_keys(const QueryRows& rows, size_t index) {
  if (!steps_[index].kv->paged()) return {};
  blocks_.clear();
  add_own_blocks(rows, *steps_[index].policy);
  return hold(rows.layer, index);
}

Status Pager::hold_read(uint32_t layer, size_t index, const AttentionPlan& plan, size_t first_job) {
  if (!steps_[index].kv->paged()) return {};
  blocks_.clear();
  auto& marks = read_marks_[owners_[index]];
  marks.resize(std::max(marks.size(), steps_[index].kv->pages(layer).size()));
  for (const AttentionJob& job : plan.jobs().subspan(first_job)) {
    for (const KeyRead& read : plan.reads(job)) {
      if (read.part->side != nullptr) continue;
      for (const KeyBlock& block : plan.blocks(read)) {
        if (std::exchange(marks[block.index], epoch_) != epoch_) blocks_.push_back(block.index);
      }
    }
  }
  auto& read = read_[owners_[index]];
  read.insert(read.end(), blocks_.begin(), blocks_.end());
  return hold(layer, index);
}

void Pager::expect_next_layer(const QueryRows& rows, size_t index) {
  const SequenceStep& step = steps_[index];
  const uint32_t next = rows.layer + 1;
  if (mode_ == Prefetch::kNone || !step.kv->paged() || next == config_.n_layer) return;
  if (index + 1 < steps_.size() && owners_[index + 1] == owners_[index]) return;
  PagePool& pool = step.kv->pool();
  QueryRows there = rows;
  there.layer = next;
  if (step.phase == kernels::Phase::kPrefill) {
    if (config_.window[next] == config_.window[rows.layer]) {
      list_like_last(there, index);
      list_pages(*step.kv, next, blocks_);
    } else {
      blocks_.resize(step.kv->pages(next).size());
      std::iota(blocks_.begin(), blocks_.end(), 0u);
      list_pages(*step.kv, next, blocks_);
    }
    pool.prefetch(next, pages_, pool.now());
    return;
  }
  if (!brings_next_layer(mode_)) return;
  selection_.reset();
  if (config_.window[next] == 0 && !step.policy->predict(there, selection_)) return;
  list_blocks(there, selection_);
  list_pages(*step.kv, next, blocks_);
  pool.prefetch(next, pages_, pool.now());
}

void Pager::finish(uint32_t layer) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    SequenceKv& kv = *steps_[i].kv;
    const uint64_t stamp = kv.pool().now();
    for (const uint32_t block : held_[i]) kv.pool().let_go(layer, kv.pages(layer)[block], stamp);
    const bool decodes = kv.paged() && steps_[i].phase == kernels::Phase::kDecode;
    if (decodes && mode_ == Prefetch::kToken) {
      expect_next_token(layer, i);
      layers_of(kv)[layer].used = stamp;
    }
    if (decodes && mode_ == Prefetch::kLayerOnce) {
      list_pages(kv, layer, held_[i]);
      kv.pool().give_up(layer, pages_, pages_.size());
    }
    held_[i].clear();
    read_[i].clear();
  }
  ++epoch_;
}

void Pager::expect_next_token(uint32_t layer, size_t index) {
  const SequenceStep& step = steps_[index];
  Layers& layers = layers_of(*step.kv);
  const Row& row = rows_[step.first_row + step.rows - 1];
  const Row next = {row.sequence, row.position + 1, row.token};
  const QueryRows rows = {layer,   kernels::Phase::kDecode, {&next, 1}, nullptr,
                          nullptr, step.prompt_end,         step.kv,    &pool_};
  selection_.reset();
  if (config_.window[layer] > 0 || step.policy->predict(rows, selection_)) {
    list_blocks(rows, selection_);
  } else {
    list_like_last(rows, index);
  }
  layers[layer].blocks = blocks_;
  const uint64_t since = layers[layer].used;
  for (uint32_t distance = 1; distance <= std::min(kLookAhead, config_.n_layer - 1); ++distance) {
    if (layers[(layer + distance) % config_.n_layer].partly) {
      bring_ahead(*step.kv, layer, distance, since);
    }
  }
  bring_ahead(*step.kv, layer, config_.n_layer, since);
}

void Pager::bring_ahead(SequenceKv& kv, uint32_t last, uint32_t distance, uint64_t since) {
  const uint32_t target = (last + distance) % config_.n_layer;
  Layer& layer = layers_of(kv)[target];
  list_pages(kv, target, layer.blocks);
  if (const uint64_t away = kv.pool().away(target, pages_); away > 0) {
    make_room(kv, last, config_.n_layer - distance, away, since);
    list_pages(kv, target, layer.blocks);
  }
  layer.partly = !kv.pool().prefetch(target, pages_, since);
}

void Pager::make_room(SequenceKv& kv, uint32_t last, uint32_t layers, uint64_t pages,
                      uint64_t since) {
  PagePool& pool = kv.pool();
  uint64_t missing = pool.spare(pages, since);
  Layers& known = layers_of(kv);
  for (uint32_t back = 0; back < layers && missing > 0; ++back) {
    const uint32_t victim = (last + config_.n_layer - back) % config_.n_layer;
    list_pages(kv, victim, known[victim].blocks);
    const uint64_t given = pool.give_up(victim, pages_, missing);
    missing -= given;
    if (given > 0) known[victim].partly = true;
  }
}

void Pager::add_blocks(KeyRange keys) {
  for (int32_t block = keys.begin / kTokens; keys.begin < keys.end && block * kTokens < keys.end;
       ++block) {
    blocks_.push_back(static_cast<uint32_t>(block));
  }
}

void Pager::add_own_blocks(const QueryRows& rows, const Policy& policy) {
  const int32_t end = rows.end();
  add_blocks({0, std::min(policy.reads_before(rows), end)});
  add_blocks({policy.reads_from(rows), end});
}

void Pager::list_like_last(const QueryRows& rows, size_t index) {
  blocks_ = read_[owners_[index]];
  if (config_.window[rows.layer] == 0) add_own_blocks(rows, *steps_[index].policy);
  keep_one_of_each(blocks_);
}

void Pager::list_blocks(const QueryRows& rows, const Selection& selection) {
  const int32_t end = rows.end(), window = static_cast<int32_t>(config_.window[rows.layer]);
  blocks_.clear();
  const auto add = [&](KeyRange keys, int32_t window_of_part) {
    for (const int32_t bound : {window, window_of_part}) {
      if (bound > 0) keys.begin = std::max(keys.begin, end - bound);
    }
    add_blocks({keys.begin, std::min(keys.end, end)});
  };
  if (selection.all) return add({0, end}, 0);
  for (const SelectionPart& part : selection.parts) {
    if (part.side != nullptr) continue;
    for (const KeyRange& range : part.ranges) add(range, part.window);
  }
  keep_one_of_each(blocks_);
}

void Pager::list_pages(const SequenceKv& kv, uint32_t layer, std::span<const uint32_t> blocks) {
  const auto table = kv.pages(layer);
  pages_.clear();
  for (const uint32_t block : blocks) {
    if (block < table.size() && table[block] != kNoPage) pages_.push_back(table[block]);
  }
}

}  // namespace reprise

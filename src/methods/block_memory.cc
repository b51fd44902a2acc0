#include "methods/block_memory.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/key_logits.h"
#include "kernels/ops.h"
#include "kernels/softmax.h"
#include "methods/key_list.h"
#include "methods/top_k.h"

namespace reprise {
namespace {

constexpr int32_t kTokens = static_cast<int32_t>(kPageTokens);
constexpr int32_t kStep = 16;  // positions from one voting query to the next

int32_t page_start(int32_t key) { return key / kTokens * kTokens; }
int32_t vote_position(size_t sample) { return static_cast<int32_t>(sample) * kStep + kStep - 1; }

}  // namespace

BlockMemory::BlockMemory(const BlockMemoryOptions& options, const ModelConfig& config)
    : config_(&config), options_(options), layers_(config.n_layer) {
  auto rotations = std::make_shared<std::vector<Rotation>>(3);
  const int32_t positions = options.local + options.block + 3 * kTokens;
  for (const LayerRope kind : {LayerRope::kGlobal, LayerRope::kLocal}) {
    const RopeConfig& rope = kind == LayerRope::kGlobal ? config.rope : config.local_rope;
    if (rope.dims == 0) continue;
    const RopeTable table(rope, config.context);
    Rotation& rotation = (*rotations)[static_cast<size_t>(kind)];
    rotation.pairs = table.pairs();
    rotation.cos_sin.resize(static_cast<size_t>(positions) * table.pairs() * 2);
    for (int32_t at = 0; at < positions; ++at) {
      table.cos_sin(at, &rotation.cos_sin[static_cast<size_t>(at) * table.pairs() * 2]);
    }
  }
  rotations_ = std::move(rotations);
}

const BlockMemory::Rotation& BlockMemory::rotation(uint32_t layer) const {
  const auto kind = config_->layer_rope.empty() ? LayerRope::kGlobal : config_->layer_rope[layer];
  return (*rotations_)[static_cast<size_t>(kind)];
}

void BlockMemory::rotate(uint32_t layer, int32_t position, float* q, size_t heads) const {
  const Rotation& table = rotation(layer);
  const float* cos_sin = table.cos_sin.data() + static_cast<size_t>(position) * table.pairs * 2;
  kernels::rope(q, cos_sin, heads, config_->head_dim, table.pairs);
}

void BlockMemory::list_rotated(const QueryRows& rows, size_t kv_head, KeyRange keys,
                               std::vector<kernels::PageSpan>& pages) const {
  list_pages(rows, kv_head, keys.begin, keys.end, pages);
  const Rotation& table = rotation(rows.layer);
  if (table.pairs == 0) return;
  for (size_t i = 0; i < pages.size(); ++i) {
    pages[i].cos_sin = table.cos_sin.data() + i * kPageTokens * table.pairs * 2;
  }
}

void BlockMemory::logits(const QueryRows& rows, std::span<const kernels::PageSpan> pages,
                         std::span<const float> q, std::vector<float>& out) const {
  kernels::KeyLogitsArgs args;
  args.layout = &rows.kv->pool().layout();
  args.rows = q.size() / config_->head_dim;
  args.q = q.data();
  args.q_stride = config_->head_dim;
  args.pages = pages;
  args.scale = config_->attention_scale;
  args.soft_cap = config_->attention_soft_cap;
  args.rope_pairs = rotation(rows.layer).pairs;
  args.out_stride = pages.size() * kPageTokens;
  out.resize(args.rows * args.out_stride);
  args.out = out.data();
  kernels::key_logits(args);
}

void BlockMemory::update(const QueryRows& rows) {
  Layer& layer = layers_[rows.layer];
  const size_t samples = static_cast<size_t>(rows.end()) / kStep, heads = config_->n_kv_head;
  const size_t first = static_cast<size_t>(rows.first()) / kStep;
  layer.votes.resize(samples * config_->n_head * config_->head_dim);
  // Queries that were never seen have no weight.
  layer.lse.resize(samples * config_->n_head, std::numeric_limits<float>::infinity());
  if (first < samples) {
    rows.pool->run((samples - first) * heads, [&](size_t task, int) {
      take_vote(rows, vote_position(first + task / heads), task % heads);
    });
  }
  const int32_t known = layer.blocks, blocks = std::max(known, blocks_at(rows.first()));
  layer.keys.resize(static_cast<size_t>(blocks) * heads * config_->head_dim);
  rows.pool->run(static_cast<size_t>(blocks - known) * heads, [&](size_t task, int) {
    represent(rows, known + static_cast<int32_t>(task / heads), task % heads);
  });
  layer.blocks = blocks;
}

void BlockMemory::take_vote(const QueryRows& rows, int32_t position, size_t kv_head) {
  Layer& layer = layers_[rows.layer];
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  const auto row = static_cast<size_t>(position - rows.first());
  const auto sample = static_cast<size_t>(position / kStep);
  const size_t first_head = kv_head * group;
  const float* own = rows.q + (row * config_->n_head + first_head) * dim;
  std::copy_n(own, group * dim, &layer.votes[(sample * config_->n_head + first_head) * dim]);

  const KeyRange window = {std::max(0, position + 1 - options_.local), position + 1};
  std::vector<float> q(own, own + group * dim), weights;
  rotate(rows.layer, position - page_start(window.begin), q.data(), group);
  std::vector<kernels::PageSpan> pages;
  list_rotated(rows, kv_head, window, pages);
  logits(rows, pages, q, weights);
  const size_t stride = pages.size() * kPageTokens;
  for (size_t head = 0; head < group; ++head) {
    layer.lse[sample * config_->n_head + first_head + head] =
        kernels::softmax(&weights[head * stride], stride);
  }
}

void BlockMemory::represent(const QueryRows& rows, int32_t block, size_t kv_head) {
  Layer& layer = layers_[rows.layer];
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  const KeyRange own = keys(block);
  // Votes of the queries that see a key of the block in their window.
  const auto first = static_cast<size_t>(own.begin / kStep);
  const auto last = static_cast<size_t>((own.end - 1 + options_.local) / kStep);
  const int32_t base = page_start(own.begin);
  std::vector<float> q, lse;
  for (size_t sample = first; sample < last; ++sample) {
    const size_t head = sample * config_->n_head + kv_head * group;
    q.insert(q.end(), &layer.votes[head * dim], &layer.votes[head * dim] + group * dim);
    lse.insert(lse.end(), &layer.lse[head], &layer.lse[head] + group);
    rotate(rows.layer, vote_position(sample) - base, q.data() + q.size() - group * dim, group);
  }
  std::vector<kernels::PageSpan> pages;
  list_rotated(rows, kv_head, own, pages);
  std::vector<float> values, received(static_cast<size_t>(options_.block));
  logits(rows, pages, q, values);
  for (size_t row = 0; row < lse.size(); ++row) {
    const int32_t position = vote_position(first + row / group);
    const int32_t begin = std::max(own.begin, position + 1 - options_.local);
    for (int32_t key = begin; key < std::min(own.end, position + 1); ++key) {
      const float logit =
          values[row * pages.size() * kPageTokens + static_cast<size_t>(key - base)];
      received[static_cast<size_t>(key - own.begin)] += std::exp(logit - lse[row]);
    }
  }
  std::vector<int32_t> best;
  top_k(received, static_cast<size_t>(options_.representatives), best);
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  std::vector<float> key(dim);
  float* mean = &layer.keys[(static_cast<size_t>(block) * config_->n_kv_head + kv_head) * dim];
  std::fill_n(mean, dim, 0.0f);
  for (const int32_t index : best) {
    const auto token = static_cast<size_t>(own.begin) + static_cast<size_t>(index);
    const std::byte* page = rows.kv->page(rows.layer, token / kPageTokens);
    kernels::load_k(layout, page + layout.k_offset(kv_head), token % kPageTokens, key.data());
    kernels::add_scaled(mean, key.data(), 1.0f / static_cast<float>(best.size()), dim);
  }
}

uint64_t BlockMemory::score(const QueryRows& rows, std::vector<float>& scores) const {
  const size_t dim = config_->head_dim, group = config_->n_head / config_->n_kv_head;
  const size_t width = config_->n_kv_head * dim;
  // The sum over rows and over the heads of a group ranks as the mean does.
  std::vector<float> q(width);
  for (size_t head = 0; head < rows.rows.size() * config_->n_head; ++head) {
    const size_t kv_head = head % config_->n_head / group;
    kernels::add_scaled(&q[kv_head * dim], rows.q + head * dim, 1.0f, dim);
  }
  rotate(rows.layer, options_.local, q.data(), config_->n_kv_head);
  scores.assign(static_cast<size_t>(blocks_at(rows.first())), 0.0f);
  const float* key = layers_[rows.layer].keys.data();
  for (float& score : scores) {
    for (size_t d = 0; d < width; ++d) score += q[d] * *key++;
  }
  return scores.size() * width * sizeof(float);
}

void BlockMemory::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    const size_t samples = static_cast<size_t>(length) / kStep;
    layer.lse.resize(std::min(layer.lse.size(), samples * config_->n_head));
    layer.votes.resize(layer.lse.size() * config_->head_dim);
    layer.blocks = std::min(layer.blocks, blocks_at(length));
  }
}

uint64_t BlockMemory::bytes() const {
  uint64_t floats = 0;
  for (const Layer& layer : layers_) {
    floats += layer.votes.capacity() + layer.lse.capacity() + layer.keys.capacity();
  }
  for (const Rotation& rotation : *rotations_) floats += rotation.cos_sin.capacity();
  return floats * sizeof(float);
}

}  // namespace reprise

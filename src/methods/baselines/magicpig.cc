#include "methods/baselines/magicpig.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/key_logits.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

// Of what is sampled less than once in a billion steps, the correction is cut off.
constexpr double kLeastProbability = 1e-9;

// Pages of ascending keys, their slots set.
void list_key_pages(const QueryRows& rows, size_t kv_head, std::span<const int32_t> keys,
                    std::vector<kernels::PageSpan>& pages) {
  constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  pages.clear();
  for (const int32_t key : keys) {
    const int32_t block = key / kTokens;
    if (pages.empty() || pages.back().index != block * kTokens) {
      const std::byte* page = rows.kv->page(rows.layer, static_cast<size_t>(block));
      pages.push_back({page + layout.k_offset(kv_head), nullptr, block * kTokens, 0});
    }
    const auto slot = static_cast<uint32_t>(key % kTokens);
    pages.back().slots = static_cast<uint16_t>(pages.back().slots | 1u << slot);
  }
}

}  // namespace

double collision_probability(double p, size_t tables, size_t least) {
  if (least > tables) return 0.0;
  if (p >= 1.0) return 1.0;
  double term = std::exp(static_cast<double>(tables) * std::log1p(-p));  // no collision at all
  double fewer = 0.0;
  for (size_t i = 0; i < least; ++i) {
    fewer += term;
    term *= static_cast<double>(tables - i) / static_cast<double>(i + 1) * p / (1.0 - p);
  }
  return std::max(0.0, 1.0 - fewer);
}

MagicPigPolicy::MagicPigPolicy(const MagicPigOptions& options, const ModelConfig& config)
    : config_(&config),
      sink_(static_cast<int32_t>(options.sink)),
      local_(static_cast<int32_t>(options.local)),
      min_collisions_(std::min(options.min_collisions, options.tables)),
      planes_(std::make_shared<SignPlanes>(options.tables, options.bits, config.head_dim,
                                           options.seed)),
      layers_(config.n_layer),
      samples_(config.n_head) {}

void MagicPigPolicy::select(const QueryRows& rows, Selection& selection) {
  const int32_t end = rows.end();
  Layer& layer = layers_[rows.layer];
  if (rows.phase == kernels::Phase::kPrefill) {
    if (end == rows.prompt_end) hash_prompt(rows, end);
    return;
  }
  if (layer.hashed_end == 0) hash_prompt(rows, end);
  const int32_t recent = std::min(layer.hashed_end, end - local_);
  if (recent <= sink_) return;
  rows.pool->run(samples_.size(), [&](size_t head, int) {
    draw(rows, head, recent, samples_[head]);
    correct(rows, head, samples_[head]);
  });
  selection.all = false;
  selection.index_bytes_read = planes_->bytes() / 2;  // one of the two layouts, shared by heads
  SelectionPart& part = selection.parts.emplace_back();
  part.split = HeadSplit::kPerQueryHead;
  for (const Sample& sample : samples_) {
    add_keys(part, sink_, sample.keys, 0, {recent, end});
    part.bias.insert(part.bias.end(), static_cast<size_t>(sink_), 0.0f);
    part.bias.insert(part.bias.end(), sample.bias.begin(), sample.bias.end());
    part.bias.insert(part.bias.end(), static_cast<size_t>(end - recent), 0.0f);
    selection.index_bytes_read += sample.bytes;
  }
}

void MagicPigPolicy::hash_prompt(const QueryRows& rows, int32_t end) {
  Layer& layer = layers_[rows.layer];
  layer.hashed_end = end;
  layer.heads.assign(config_->n_kv_head, {});
  if (end <= sink_) return;
  rows.pool->run(layer.heads.size(), [&](size_t head, int) {
    layer.heads[head].prepare(rows, head, sink_, end, *planes_);
  });
  const size_t pieces = layer.heads[0].pieces(), tables = planes_->tables();
  rows.pool->run(layer.heads.size() * pieces, [&](size_t task, int) {
    layer.heads[task / pieces].hash_piece(rows, task / pieces, task % pieces, *planes_);
  });
  rows.pool->run(layer.heads.size() * tables, [&](size_t task, int) {
    layer.heads[task / tables].sort_table(task % tables, *planes_);
  });
  for (SignTables& head : layer.heads) head.finish();
}

void MagicPigPolicy::draw(const QueryRows& rows, size_t head, int32_t end, Sample& sample) const {
  const size_t kv_head = head / (config_->n_head / config_->n_kv_head);
  planes_->project(rows.q_rotated + head * config_->head_dim, sample.dots);
  planes_->buckets_of(sample.dots, sample.buckets);
  sample.bytes = layers_[rows.layer].heads[kv_head].collide(sample.buckets, min_collisions_, end,
                                                            *planes_, sample.counts, sample.keys);
}

// bias = -ln(probability that the key is sampled), from its angle to the query after centring.
void MagicPigPolicy::correct(const QueryRows& rows, size_t head, Sample& sample) const {
  const size_t dim = config_->head_dim, kv_head = head / (config_->n_head / config_->n_kv_head);
  const SignTables& tables = layers_[rows.layer].heads[kv_head];
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  list_key_pages(rows, kv_head, sample.keys, sample.pages);
  sample.logits.resize(sample.pages.size() * kPageTokens);
  const float* q = rows.q_rotated + head * dim;
  kernels::KeyLogitsArgs args;
  args.layout = &layout;
  args.rows = 1;
  args.q = q;
  args.pages = sample.pages;
  args.out = sample.logits.data();
  args.out_stride = sample.logits.size();
  kernels::key_logits(args);
  sample.bytes += sample.pages.size() * layout.tile_bytes() + sample.keys.size() * sizeof(float);

  double norm = 0.0, centre = 0.0;
  for (size_t d = 0; d < dim; ++d) {
    norm += double{q[d]} * q[d];
    centre += double{q[d]} * tables.centre()[d];
  }
  norm = std::sqrt(norm);
  sample.bias.clear();
  size_t page = 0;
  for (const int32_t key : sample.keys) {
    while (sample.pages[page].index + static_cast<int32_t>(kPageTokens) <= key) ++page;
    const auto slot = static_cast<size_t>(key - sample.pages[page].index);
    const double lengths = norm * tables.norm(key);
    const double dot = sample.logits[page * kPageTokens + slot] - centre;
    const double cosine = lengths > 0.0 ? std::clamp(dot / lengths, -1.0, 1.0) : 0.0;
    const double same_side = 1.0 - std::acos(cosine) / std::numbers::pi;
    const double collides = std::pow(same_side, static_cast<double>(planes_->bits()));
    const double sampled = collision_probability(collides, planes_->tables(), min_collisions_);
    sample.bias.push_back(static_cast<float>(-std::log(std::max(sampled, kLeastProbability))));
  }
}

void MagicPigPolicy::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    if (length < layer.hashed_end) layer = {};
  }
}

uint64_t MagicPigPolicy::state_bytes() const {
  uint64_t bytes = planes_->bytes();
  for (const Layer& layer : layers_) {
    for (const SignTables& head : layer.heads) bytes += head.bytes();
  }
  return bytes;
}

}  // namespace reprise

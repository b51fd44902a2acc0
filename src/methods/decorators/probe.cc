#include "methods/decorators/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/key_logits.h"

namespace reprise {
namespace {

/// Keys of a list that a row at position end - 1 reads.
uint64_t count_keys(const SelectionPart& part, size_t list, int32_t end) {
  const int32_t stop = part.side ? part.side->length() : end;
  const int32_t start = part.window > 0 && !part.side ? std::max(0, end - part.window) : 0;
  uint64_t keys = 0;
  for (const KeyRange& range : part.list(list)) {
    const int32_t first = std::max(range.begin, start), last = std::min(range.end, stop);
    if (first < last) keys += static_cast<uint64_t>(last - first);
  }
  return keys;
}

std::vector<kernels::PageSpan> all_pages(const QueryRows& rows, size_t kv_head) {
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  const size_t keys = static_cast<size_t>(rows.end());
  std::vector<kernels::PageSpan> pages((keys + kPageTokens - 1) / kPageTokens);
  for (size_t i = 0; i < pages.size(); ++i) {
    const std::byte* page = rows.kv->page(rows.layer, i);
    const size_t slots = std::min(kPageTokens, keys - i * kPageTokens);
    pages[i].k = page + layout.k_offset(kv_head);
    pages[i].v = page + layout.v_offset(kv_head);
    pages[i].index = static_cast<int32_t>(i * kPageTokens);
    pages[i].slots = static_cast<uint16_t>((1u << slots) - 1);
  }
  return pages;
}

/// Share of the softmax mass that the count largest logits hold.
double top_mass(std::span<float> logits, uint64_t count, float lse) {
  count = std::min<uint64_t>(count, logits.size());
  const auto last = logits.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(logits.begin(), last, logits.end(), std::greater<>());
  double mass = 0.0;
  for (auto logit = logits.begin(); logit != last; ++logit) mass += std::exp(*logit - lse);
  return mass;
}

double relative_error(const float* a, const float* b, size_t count) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < count; ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

}  // namespace

void ProbePolicy::Errors::add(double supposed, double error) {
  const double a = std::log(supposed), b = std::log(std::max(error, 1e-9));
  add({1.0, a, b, a * a, b * b, a * b});
}

void ProbePolicy::Errors::add(const Errors& other) {
  count += other.count;
  x += other.x;
  y += other.y;
  xx += other.xx;
  yy += other.yy;
  xy += other.xy;
}

double ProbePolicy::Errors::correlation() const {
  const double spread = (count * xx - x * x) * (count * yy - y * y);
  return spread > 0.0 ? (count * xy - x * y) / std::sqrt(spread) : 0.0;
}

void ProbePolicy::Sums::add(const Sums& other) {
  recovery += other.recovery;
  topk_recall += other.topk_recall;
  output_error += other.output_error;
  heads += other.heads;
  errors.add(other.errors);
}

ProbePolicy::ProbePolicy(const ProbeOptions& options, const ModelConfig& config,
                         std::unique_ptr<Policy> wrapped)
    : PolicyDecorator(std::move(wrapped)),
      config_(&config),
      by_layer_(options.layers),
      by_age_(options.ages),
      keys_read_(config.n_head),
      layers_(config.n_layer) {}

void ProbePolicy::select(const QueryRows& rows, Selection& selection) {
  inner().select(rows, selection);
  exact_ = selection.all;
  std::fill(keys_read_.begin(), keys_read_.end(), 0);
  if (exact_ || rows.phase == kernels::Phase::kPrefill) return;
  const uint32_t group = config_->n_head / config_->n_kv_head;
  for (const SelectionPart& part : selection.parts) {
    for (uint32_t head = 0; head < config_->n_head; ++head) {
      const uint32_t list = part.split == HeadSplit::kShared      ? 0
                            : part.split == HeadSplit::kPerKvHead ? head / group
                                                                  : head;
      keys_read_[head] += count_keys(part, list, rows.end());
    }
  }
}

void ProbePolicy::observe(const QueryRows& rows, const AttentionResult& result) {
  if (inner().observes(rows.layer, rows.phase)) inner().observe(rows, result);
  const bool asked = config_->window[rows.layer] == 0 && rows.phase == kernels::Phase::kDecode;
  if (!asked || position_free() || !keys_present(*rows.kv, rows.layer, 0, rows.end())) return;
  std::vector<Sums> heads(config_->n_kv_head);
  rows.pool->run(heads.size(),
                 [&](size_t head, int) { heads[head] = measure(rows, result, head); });
  if (first_end_ == 0) first_end_ = rows.end();
  const auto above = std::ranges::upper_bound(kAges, rows.end() - first_end_);
  Sums& age = ages_[static_cast<size_t>(std::max<std::ptrdiff_t>(1, above - kAges.begin()) - 1)];
  for (const Sums& sums : heads) {
    layers_[rows.layer].add(sums);
    age.add(sums);
  }
}

ProbePolicy::Sums ProbePolicy::measure(const QueryRows& rows, const AttentionResult& result,
                                       size_t kv_head) const {
  const size_t group = config_->n_head / config_->n_kv_head, head_dim = config_->head_dim;
  if (exact_) return {double(group), double(group), 0.0, group, {}};
  const auto pages = all_pages(rows, kv_head);
  const size_t first = kv_head * group;  // query head
  const std::vector<int32_t> begin(group, 0), end(group, rows.end());
  std::vector<float> out(group * head_dim), lse(group);
  kernels::AttendArgs full;
  full.layout = &rows.kv->pool().layout();
  full.rows = group;
  full.q = rows.q_rotated + first * head_dim;
  full.q_stride = head_dim;
  full.row_begin = begin.data();
  full.row_end = end.data();
  full.pages = pages;
  full.scale = config_->attention_scale;
  full.soft_cap = config_->attention_soft_cap;
  full.out = out.data();
  full.out_stride = head_dim;
  full.lse = lse.data();
  std::vector<std::byte> scratch(kernels::attend_scratch_bytes(full));
  kernels::attend(full, scratch.data());

  std::vector<float> logits(group * pages.size() * kPageTokens);
  kernels::KeyLogitsArgs keys;
  keys.layout = full.layout;
  keys.rows = group;
  keys.q = full.q;
  keys.q_stride = head_dim;
  keys.pages = pages;
  keys.scale = full.scale;
  keys.soft_cap = full.soft_cap;
  keys.out = logits.data();
  keys.out_stride = pages.size() * kPageTokens;
  kernels::key_logits(keys);

  Sums sums;
  for (size_t r = 0; r < group; ++r) {
    const double recovery = std::exp(static_cast<double>(result.lse[first + r]) - lse[r]);
    const auto row =
        std::span(logits).subspan(r * keys.out_stride, static_cast<size_t>(rows.end()));
    sums.recovery += recovery;
    sums.topk_recall += recovery / top_mass(row, keys_read_[first + r], lse[r]);
    const double error =
        relative_error(result.out + (first + r) * head_dim, &out[r * head_dim], head_dim);
    sums.output_error += error;
    const auto supposed = supposed_errors();
    if (!supposed.empty() && supposed[first + r] > 0.0f)
      sums.errors.add(supposed[first + r], error);
  }
  sums.heads = group;
  return sums;
}

PolicyStats ProbePolicy::stats() const {
  PolicyStats stats = inner().stats();
  const auto add = [&](const Sums& sums, const std::string& suffix) {
    if (sums.heads == 0) return;
    const auto heads = static_cast<double>(sums.heads);
    stats.emplace_back("recovery" + suffix, sums.recovery / heads);
    stats.emplace_back("topk_recall" + suffix, sums.topk_recall / heads);
    stats.emplace_back("output_error" + suffix, sums.output_error / heads);
    const Errors& errors = sums.errors;
    if (errors.count < 2) return;
    stats.emplace_back("error_correlation" + suffix, errors.correlation());
    stats.emplace_back("error_ratio" + suffix, std::exp((errors.y - errors.x) / errors.count));
  };
  Sums total;
  for (const Sums& layer : layers_) total.add(layer);
  add(total, "");
  for (size_t i = 0; by_layer_ && i < layers_.size(); ++i) {
    add(layers_[i], fmt::format("_layer{}", i));
  }
  for (size_t i = 0; by_age_ && i < ages_.size(); ++i) {
    add(ages_[i], fmt::format("_from{}", kAges[i]));
  }
  return stats;
}

void ProbePolicy::clear_stats() {
  std::fill(layers_.begin(), layers_.end(), Sums{});
  ages_.fill({});
  first_end_ = 0;
  inner().clear_stats();
}

}  // namespace reprise

// Figures of MAC-Attention.
#include <fmt/format.h>

#include <algorithm>

#include "methods/mac/mac.h"

namespace reprise {
namespace {

double ratio(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

}  // namespace

void MacSums::add(const MacSums& other) {
  heads += other.heads;
  head_hits += other.head_hits;
  reused_heads += other.reused_heads;
  groups += other.groups;
  group_hits += other.group_hits;
  steps += other.steps;
  off += other.off;
  nonfinite += other.nonfinite;
  keys += other.keys;
  skipped += other.skipped;
  lag += other.lag;
  depth += other.depth;
  distance += other.distance;
  share += other.share;
}

PolicyStats MacPolicy::stats() const {
  PolicyStats stats = inner().stats();
  if (!settings_.reuses) return stats;
  std::vector<MacSums> layers(layers_.size());
  if (device_.state != nullptr) layers = device_.state->sums();
  MacSums all, prompt;
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].add(layers_[i].sums);
    all.add(layers[i]);
    prompt.add(layers_[i].prompt);
  }
  const auto reused = static_cast<double>(all.reused_heads);
  const auto count = [](uint64_t value) { return static_cast<double>(value); };
  stats.emplace_back("mac_head_hits", ratio(count(all.head_hits), count(all.heads)));
  stats.emplace_back("mac_group_hits", ratio(count(all.group_hits), count(all.groups)));
  stats.emplace_back("mac_skipped", ratio(all.skipped, all.keys));
  stats.emplace_back("mac_lag", ratio(all.lag, reused));
  stats.emplace_back("mac_depth", ratio(all.depth, reused));
  stats.emplace_back("mac_distance", ratio(all.distance, reused));
  stats.emplace_back("mac_prefix_share", ratio(all.share, reused));
  stats.emplace_back("mac_off", ratio(count(all.off), count(all.steps)));
  stats.emplace_back("mac_nonfinite", count(all.nonfinite + prompt.nonfinite));
  const bool on_device = device_.state != nullptr;
  const uint64_t memory = on_device ? device_.state->all_bytes() : state_bytes();
  stats.emplace_back("mac_rings_mb", count(memory) * 1e-6);
  uint64_t ringless = on_device ? device_.state->ringless_rows() : 0;
  for (const Layer& layer : layers_) ringless = std::max(ringless, layer.ringless);
  stats.emplace_back("mac_ringless", count(ringless));
  if (settings_.in_prompts) {
    const auto in_prompt = static_cast<double>(prompt.reused_heads);
    stats.emplace_back("mac_prompt_head_hits", ratio(count(prompt.head_hits), count(prompt.heads)));
    stats.emplace_back("mac_prompt_group_hits",
                       ratio(count(prompt.group_hits), count(prompt.groups)));
    stats.emplace_back("mac_prompt_skipped", ratio(prompt.skipped, prompt.keys));
    stats.emplace_back("mac_prompt_lag", ratio(prompt.lag, in_prompt));
    stats.emplace_back("mac_prompt_depth", ratio(prompt.depth, in_prompt));
  }
  for (size_t i = 0; by_layer_ && i < layers.size(); ++i) add_layer_figures(i, layers[i], stats);
  return stats;
}

void MacPolicy::add_layer_figures(size_t index, const MacSums& sums, PolicyStats& stats) const {
  if (sums.steps == 0) return;
  const auto add = [&](std::string_view name, size_t head, double part, double whole) {
    stats.emplace_back(fmt::format("{}_layer{}_head{}", name, index, head), ratio(part, whole));
  };
  const auto count = [](uint64_t value) { return static_cast<double>(value); };
  const Layer& layer = layers_[index];
  stats.emplace_back(fmt::format("mac_group_hits_layer{}", index),
                     ratio(count(sums.group_hits), count(sums.groups)));
  for (size_t head = 0; head < layer.hits.size(); ++head) {
    const HeadSums& own = layer.heads[head / group_];
    add("mac_head_hits", head, count(layer.hits[head]), count(own.steps - own.off));
  }
  if (layer.heads.front().steps == 0) return;  // a device counts by layer
  for (size_t head = 0; head < layer.heads.size(); ++head) {
    const HeadSums& own = layer.heads[head];
    add("mac_off", head, count(own.off), count(own.steps));
    add("mac_skipped", head, own.skipped, own.keys);
  }
}

void MacPolicy::clear_stats() {
  for (Layer& layer : layers_) {
    layer.sums = layer.prompt = {};
    layer.hits.clear();
    layer.ringless = 0;
    std::fill(layer.heads.begin(), layer.heads.end(), HeadSums{});
  }
  if (device_.state != nullptr) device_.state->clear_sums();
  inner().clear_stats();
}

}  // namespace reprise

// Figures of MAC-Attention.
#include <fmt/format.h>

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
  if (settings_.in_prompts) {
    const auto in_prompt = static_cast<double>(prompt.reused_heads);
    stats.emplace_back("mac_prompt_head_hits", ratio(count(prompt.head_hits), count(prompt.heads)));
    stats.emplace_back("mac_prompt_group_hits",
                       ratio(count(prompt.group_hits), count(prompt.groups)));
    stats.emplace_back("mac_prompt_skipped", ratio(prompt.skipped, prompt.keys));
    stats.emplace_back("mac_prompt_lag", ratio(prompt.lag, in_prompt));
    stats.emplace_back("mac_prompt_depth", ratio(prompt.depth, in_prompt));
  }
  for (size_t i = 0; by_layer_ && i < layers.size(); ++i) {
    const MacSums& sums = layers[i];
    if (sums.steps == 0) continue;
    const double hits = ratio(count(sums.group_hits), count(sums.groups));
    stats.emplace_back(fmt::format("mac_group_hits_layer{}", i), hits);
    const double compared = count(sums.steps - sums.off);
    for (size_t head = 0; head < layers_[i].hits.size(); ++head) {
      stats.emplace_back(fmt::format("mac_head_hits_layer{}_head{}", i, head),
                         ratio(count(layers_[i].hits[head]), compared));
    }
  }
  return stats;
}

void MacPolicy::clear_stats() {
  for (Layer& layer : layers_) {
    layer.sums = layer.prompt = {};
    layer.hits.clear();
  }
  if (device_.state != nullptr) device_.state->clear_sums();
  inner().clear_stats();
}

}  // namespace reprise

#include "eval/paired.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace reprise::eval {
namespace {

constexpr double kSignificance = 0.05;

using Clusters = std::vector<std::vector<double>>;

bool is_binary(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return v == 0 || v == 1; });
}

// Factors that make the mean over samples the mean over subtasks, each with the mean over its own.
std::map<std::string_view, double> subtask_weights(const std::vector<std::string_view>& ids) {
  std::map<std::string_view, double> weights;
  for (const std::string_view id : ids) weights[subtask_of(id)] += 1;
  const auto all = static_cast<double>(ids.size()), subtasks = static_cast<double>(weights.size());
  for (auto& [subtask, weight] : weights) weight = all / (subtasks * weight);
  return weights;
}

void weigh(const std::vector<std::string_view>& ids, std::vector<double>& values) {
  const auto weights = subtask_weights(ids);
  for (size_t i = 0; i < ids.size(); ++i) values[i] *= weights.at(subtask_of(ids[i]));
}

// Means of blocks: the nearly independent units of a test over trajectories.
std::vector<double> block_means(const Clusters& clusters) {
  std::vector<double> means;
  for (const auto& cluster : clusters) {
    for (size_t at = 0; at < cluster.size(); at += kBlockTokens) {
      const size_t n = std::min(kBlockTokens, cluster.size() - at);
      double sum = 0;
      for (size_t i = at; i < at + n; ++i) sum += cluster[i];
      means.push_back(sum / static_cast<double>(n));
    }
  }
  return means;
}

BootstrapOptions bootstrap_options(uint64_t seed) {
  BootstrapOptions options;
  options.seed = seed;
  return options;
}

// The samples' differences; sets everything but the verdict.
Difference sample_difference(const Values& values, const Values& reference, uint64_t seed) {
  std::vector<std::string_view> ids;
  std::vector<double> differences, ours, theirs;
  for (const auto& [id, value] : values) {
    const auto other = reference.find(id);
    if (other == reference.end()) continue;
    ids.push_back(id);
    ours.push_back(value);
    theirs.push_back(other->second);
    differences.push_back(value - other->second);
  }
  Difference difference;
  difference.n = difference.units = differences.size();
  if (is_binary(ours) && is_binary(theirs)) {
    difference.p = mcnemar_exact(
        static_cast<uint64_t>(std::count(differences.begin(), differences.end(), 1.0)),
        static_cast<uint64_t>(std::count(differences.begin(), differences.end(), -1.0)));
    weigh(ids, differences);
  } else {
    weigh(ids, differences);
    difference.p = sign_flip_p(differences, 10'000, seed);
  }
  difference.value = bootstrap_mean(differences, bootstrap_options(seed));
  return difference;
}

// Differences position by position, a cluster for each text that both have.
Clusters step_differences(const StepValues& values, const StepValues& reference) {
  Clusters clusters;
  for (const auto& [id, positions] : values) {
    const auto other = reference.find(id);
    if (other == reference.end()) continue;
    std::vector<double> cluster;
    for (const auto& [position, value] : positions)
      if (const auto at = other->second.find(position); at != other->second.end())
        cluster.push_back(value - at->second);
    if (!cluster.empty()) clusters.push_back(std::move(cluster));
  }
  return clusters;
}

Difference step_difference(const Clusters& clusters, uint64_t seed) {
  Difference difference;
  difference.n = clusters.size();
  difference.value = cluster_bootstrap(clusters, kBlockTokens, bootstrap_options(seed));
  const std::vector<double> blocks = block_means(clusters);
  difference.units = blocks.size();
  difference.p = sign_flip_p(blocks, 10'000, seed);
  return difference;
}

}  // namespace

Interval score_of(const Scored& scored, uint64_t seed) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (!scored.steps.empty()) {
    Clusters clusters;
    for (const auto& [id, positions] : scored.steps) {
      auto& cluster = clusters.emplace_back();
      for (const auto& [position, value] : positions) cluster.push_back(value);
    }
    return cluster_bootstrap(clusters, kBlockTokens, bootstrap_options(seed));
  }
  if (scored.samples.empty()) return {kNone, kNone, kNone};
  std::vector<std::string_view> ids;
  std::vector<double> values;
  for (const auto& [id, value] : scored.samples) {
    ids.push_back(id);
    values.push_back(value);
  }
  weigh(ids, values);
  if (is_binary(values))
    return wilson_interval(static_cast<uint64_t>(std::count(values.begin(), values.end(), 1.0)),
                           values.size());
  return bootstrap_mean(values, bootstrap_options(seed));
}

Difference paired_difference(const Scored& scored, const Scored& reference, bool lower_is_better,
                             const CompareOptions& options) {
  const Clusters clusters = step_differences(scored.steps, reference.steps);
  Difference difference = clusters.empty()
                              ? sample_difference(scored.samples, reference.samples, options.seed)
                              : step_difference(clusters, options.seed);
  difference.p_holm = difference.p;
  conclude(difference, lower_is_better, options);
  return difference;
}

void conclude(Difference& difference, bool lower_is_better, const CompareOptions& options) {
  Interval gain = difference.value;
  if (lower_is_better) gain = {-gain.mean, -gain.high, -gain.low};
  difference.verdict = Verdict::kInconclusive;
  if (difference.n == 0) return;
  difference.verdict = verdict_of(gain, options.margin, options.floor);
  // A resampled interval of one or two values has no width to speak of.
  constexpr size_t kFewest = 3;
  if (difference.units < kFewest && difference.verdict != Verdict::kEqual)
    difference.verdict = Verdict::kInconclusive;
  if (difference.p_holm < kSignificance) return;
  if (difference.verdict == Verdict::kBetter) difference.verdict = Verdict::kNonInferior;
  if (difference.verdict == Verdict::kWorse) difference.verdict = Verdict::kInconclusive;
}

}  // namespace reprise::eval

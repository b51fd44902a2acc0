#include "eval/paired.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace reprise::eval {
namespace {

constexpr double kSignificance = 0.05;

bool is_binary(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return v == 0 || v == 1; });
}

// By subtask, whose means count alike, and in it by text, as its readings are no independent ones.
std::vector<Clusters> strata_of(const Values& values, bool has_subtasks) {
  std::map<std::string_view, std::map<std::string_view, std::vector<double>>> subtasks;
  for (const auto& [id, value] : values)
    subtasks[has_subtasks ? subtask_of(id) : ""][text_of(id)].push_back(value);
  std::vector<Clusters> strata;
  for (auto& [subtask, texts] : subtasks) {
    Clusters& clusters = strata.emplace_back();
    for (auto& [text, own] : texts) clusters.push_back(std::move(own));
  }
  return strata;
}

double count_of(const Clusters& clusters) {
  size_t count = 0;
  for (const auto& cluster : clusters) count += cluster.size();
  return static_cast<double>(count);
}

// What every text adds to the mean of the strata's means, but for a factor.
std::vector<double> parts_of(const std::vector<Clusters>& strata) {
  std::vector<double> parts;
  for (const Clusters& clusters : strata) {
    const double count = count_of(clusters);
    for (const auto& cluster : clusters)
      parts.push_back(std::accumulate(cluster.begin(), cluster.end(), 0.0) / count);
  }
  return parts;
}

// Wilson's interval of as many trials as would tell the mean of the strata's means as well.
Interval share_of_hits(const std::vector<Clusters>& strata) {
  double shares = 0, variance = 0;
  for (const double part : parts_of(strata)) shares += part;
  for (const Clusters& clusters : strata) variance += 1 / count_of(clusters);
  const auto number = static_cast<double>(strata.size());
  const double trials = number * number / variance;
  return wilson_interval(shares / number * trials, trials);
}

// Means of blocks: the nearly independent units of a test over trajectories. whole: a text is one,
// as its readings say the same again.
std::vector<double> block_means(const Clusters& clusters, bool whole) {
  std::vector<double> means;
  for (const auto& cluster : clusters) {
    const size_t block = whole ? cluster.size() : kBlockTokens;
    for (size_t at = 0; at < cluster.size(); at += block) {
      const size_t n = std::min(block, cluster.size() - at);
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
Difference sample_difference(const Scored& scored, const Scored& reference, uint64_t seed) {
  Values differences;
  std::vector<double> ours, theirs;
  uint64_t only_ours = 0, only_theirs = 0;  // of hits
  for (const auto& [id, value] : scored.samples) {
    const auto other = reference.samples.find(id);
    if (other == reference.samples.end()) continue;
    ours.push_back(value);
    theirs.push_back(other->second);
    only_ours += value > other->second;
    only_theirs += value < other->second;
    differences.emplace(id, value - other->second);
  }
  const std::vector<Clusters> strata = strata_of(differences, scored.has_subtasks);
  const std::vector<double> parts = parts_of(strata);
  Difference difference;
  difference.n = differences.size();
  difference.units = parts.size();
  difference.value = stratified_bootstrap(strata, bootstrap_options(seed));
  difference.p = is_binary(ours) && is_binary(theirs) ? mcnemar_exact(only_ours, only_theirs)
                                                      : sign_flip_p(parts, 10'000, seed);
  return difference;
}

Difference step_difference(const StepValues& differences, uint64_t seed) {
  const Clusters clusters = steps_by_text(differences);
  Difference difference;
  difference.n = differences.size();
  difference.value = cluster_bootstrap(clusters, kBlockTokens, bootstrap_options(seed));
  const bool read_again = clusters.size() < differences.size();
  const std::vector<double> blocks = block_means(clusters, read_again);
  difference.units = blocks.size();
  difference.p = sign_flip_p(blocks, 10'000, seed);
  return difference;
}

}  // namespace

StepValues step_differences(const StepValues& values, const StepValues& reference) {
  StepValues differences;
  for (const auto& [id, positions] : values) {
    const auto other = reference.find(id);
    if (other == reference.end()) continue;
    for (const auto& [position, value] : positions)
      if (const auto at = other->second.find(position); at != other->second.end())
        differences[id][position] = value - at->second;
  }
  return differences;
}

Clusters steps_by_text(const StepValues& values, uint64_t begin, uint64_t end) {
  std::map<std::string_view, std::vector<double>> texts;
  for (const auto& [id, positions] : values)
    for (auto at = positions.lower_bound(begin); at != positions.end() && at->first < end; ++at)
      texts[text_of(id)].push_back(at->second);
  Clusters clusters;
  for (auto& [text, steps] : texts) clusters.push_back(std::move(steps));
  return clusters;
}

Interval score_of(const Scored& scored, uint64_t seed) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (!scored.steps.empty())
    return cluster_bootstrap(steps_by_text(scored.steps), kBlockTokens, bootstrap_options(seed));
  if (scored.samples.empty()) return {kNone, kNone, kNone};
  std::vector<double> values;
  for (const auto& [id, value] : scored.samples) values.push_back(value);
  const std::vector<Clusters> strata = strata_of(scored.samples, scored.has_subtasks);
  const bool independent = parts_of(strata).size() == values.size();
  if (independent && is_binary(values)) return share_of_hits(strata);
  return stratified_bootstrap(strata, bootstrap_options(seed));
}

Difference paired_difference(const Scored& scored, const Scored& reference, bool lower_is_better,
                             const CompareOptions& options) {
  const StepValues steps = step_differences(scored.steps, reference.steps);
  Difference difference = steps.empty() ? sample_difference(scored, reference, options.seed)
                                        : step_difference(steps, options.seed);
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

// Intervals and tests for comparing policies on the same samples. Every resampling is seeded and
// gives the same numbers on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace reprise::eval {

struct Interval {
  double mean = 0, low = 0, high = 0;
};

/// Values that are drawn together (of one document, of one prompt), by cluster.
using Clusters = std::vector<std::vector<double>>;

enum class BootstrapInterval {
  kPercentile,
  kBca,  // bias-corrected and accelerated (Efron 1987): better for skewed values
};

struct BootstrapOptions {
  uint32_t resamples = 10'000;
  double confidence = 0.95;
  uint64_t seed = 1234;
  BootstrapInterval interval = BootstrapInterval::kBca;
};

/// Of the mean of independent values. Paired: give the differences sample by sample.
/// All zeros without values; the mean alone when it is not finite.
Interval bootstrap_mean(std::span<const double> values, const BootstrapOptions& options = {});

/// Of the mean over all values of all clusters (documents, prompts), which are drawn with
/// replacement; inside a drawn cluster of n values, ceil(n / block) runs of block neighbours (the
/// last one shorter, ends joined to a ring) are drawn in turn. block 0 keeps drawn clusters whole.
/// Blocks count the variance inside clusters once more, so that few clusters still give a width:
/// where clusters hardly differ, the interval is up to 1.4 times too wide.
Interval cluster_bootstrap(std::span<const std::vector<double>> clusters, size_t block,
                           const BootstrapOptions& options = {});

/// Of the mean of the strata's (subtasks') means, each of which counts alike whatever its size:
/// their clusters are drawn whole, in every stratum among themselves and one fewer than it has,
/// which gives their means the variance that they have. Where a stratum is one cluster, which does
/// not tell its variance, the strata's means are drawn instead, as if they were samples of many.
Interval stratified_bootstrap(std::span<const Clusters> strata,
                              const BootstrapOptions& options = {});

/// Of a share of hits (Wilson 1927); mean is hits / trials. {0, 0, 1} without trials.
Interval wilson_interval(double hits, double trials, double confidence = 0.95);

/// Two-sided exact p of McNemar's test: of the pairs on which two policies differ, how many only
/// one got right and how many only the other. 1 without such pairs.
double mcnemar_exact(uint64_t only_first, uint64_t only_second);

/// Two-sided p of the sign-flip randomization test of paired differences against mean 0;
/// at least 1 / (resamples + 1).
double sign_flip_p(std::span<const double> differences, uint32_t resamples = 10'000,
                   uint64_t seed = 1234);

/// p values adjusted for making all these tests (Holm 1979), in the given order.
std::vector<double> holm_adjusted(std::span<const double> p_values);

enum class Verdict { kBetter, kNonInferior, kInconclusive, kWorse, kEqual };

/// better, non-inferior, inconclusive, worse, equal
std::string_view verdict_name(Verdict verdict);

/// Of the interval of a difference, larger is better; the margin (> 0) is the loss that would not
/// matter, the floor (>= 0) what two runs of the same policy differ by:
///   equal         the interval lies within [-floor, floor]
///   better        it lies above 0
///   non-inferior  it lies above -margin
///   worse         it lies below 0
///   inconclusive  else
Verdict verdict_of(const Interval& difference, double margin, double floor = 0);

}  // namespace reprise::eval

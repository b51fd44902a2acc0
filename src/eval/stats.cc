#include "eval/stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/percentile.h"

namespace reprise::eval {
namespace {

// Numbers in [0, n); standard distributions differ between libraries. n is below 2^32, so the
// multiplication's bias stays below n / 2^32.
class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed) {}
  size_t below(size_t n) { return (random_() >> 32) * n >> 32; }
  uint64_t bits() { return random_(); }

 private:
  std::mt19937_64 random_;
};

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double normal_quantile(double p) {
  double low = -40, high = 40;
  while (true) {
    const double middle = (low + high) / 2;
    if (middle <= low || middle >= high) return middle;
    (normal_cdf(middle) < p ? low : high) = middle;
  }
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Skewness of the estimate, from the values it takes when one unit is left out.
double acceleration(std::span<const double> left_out) {
  const double mean = mean_of(left_out);
  double squares = 0, cubes = 0;
  for (const double value : left_out) {
    const double difference = mean - value;
    squares += difference * difference;
    cubes += difference * difference * difference;
  }
  return squares > 0 ? cubes / (6 * std::pow(squares, 1.5)) : 0.0;
}

// left_out: the estimate, or what it moves by, without each unit in turn.
Interval interval_of(double estimate, const std::vector<double>& resampled,
                     std::span<const double> left_out, const BootstrapOptions& options) {
  double low = (1 - options.confidence) / 2;
  double high = 1 - low;
  if (options.interval == BootstrapInterval::kBca) {
    double below = 0;
    for (const double value : resampled) {
      below += value < estimate ? 1.0 : value == estimate ? 0.5 : 0.0;
    }
    const auto count = static_cast<double>(resampled.size());
    const double bias = normal_quantile(std::clamp(below, 0.5, count - 0.5) / count);
    const double skew = acceleration(left_out);
    const auto adjusted = [&](double share) {
      const double z = bias + normal_quantile(share);
      return normal_cdf(bias + z / (1 - skew * z));
    };
    low = adjusted(low);
    high = adjusted(high);
  }
  return {estimate, percentile(resampled, low), percentile(resampled, high)};
}

// The values of a cluster: their sum, and where runs of them are drawn, all sums from the first on,
// laid out twice so that runs may pass the end.
struct Ring {
  std::vector<double> sums;  // [2 size + 1], or empty
  size_t size = 0;
  double total = 0;

  Ring(const std::vector<double>& values, size_t block)
      : size(values.size()), total(std::accumulate(values.begin(), values.end(), 0.0)) {
    if (block == 0 || block >= size) return;
    sums.assign(2 * size + 1, 0.0);
    for (size_t i = 0; i < 2 * size; ++i) sums[i + 1] = sums[i] + values[i % size];
  }

  double drawn(size_t block, Draws& draws) const {
    if (sums.empty()) return total;
    double sum = 0;
    for (size_t at = 0; at < size; at += block) {
      const size_t start = draws.below(size);
      sum += sums[start + std::min(block, size - at)] - sums[start];
    }
    return sum;
  }
};

// Clusters that are drawn among themselves.
struct Stratum {
  std::vector<Ring> rings;
  double total = 0, count = 0;

  Stratum(std::span<const std::vector<double>> clusters, size_t block) {
    for (const auto& cluster : clusters) {
      if (cluster.empty()) continue;
      total += rings.emplace_back(cluster, block).total;
      count += static_cast<double>(cluster.size());
    }
  }
  double mean() const { return total / count; }

  // Of so many clusters.
  double drawn_mean(size_t number, size_t block, Draws& draws) const {
    double sum = 0, values = 0;
    for (size_t i = 0; i < number; ++i) {
      const Ring& ring = rings[draws.below(rings.size())];
      sum += ring.drawn(block, draws);
      values += static_cast<double>(ring.size);
    }
    return sum / values;
  }

  // What the mean moves by without each cluster in turn, per cluster left.
  void add_left_out(std::vector<double>& moves) const {
    const auto n = static_cast<double>(rings.size());
    for (const Ring& ring : rings) {
      if (rings.size() == 1) break;
      const double left = (total - ring.total) / (count - static_cast<double>(ring.size));
      moves.push_back((left - mean()) * (n - 1) / n);
    }
  }
};

Interval bootstrap(const std::vector<Stratum>& strata, size_t block,
                   const BootstrapOptions& options) {
  if (strata.empty()) return {};
  const auto number = static_cast<double>(strata.size());
  // Makes up for the spread that each of many small samples hides; of one it is never much.
  const size_t fewer = strata.size() > 1 ? 1 : 0;
  double estimate = 0;
  for (const Stratum& stratum : strata) estimate += stratum.mean() / number;
  if (!std::isfinite(estimate) || options.resamples == 0) return {estimate, estimate, estimate};
  Draws draws(options.seed);
  std::vector<double> resampled(options.resamples, 0.0);
  for (double& mean : resampled)
    for (const Stratum& stratum : strata)
      mean += stratum.drawn_mean(stratum.rings.size() - fewer, block, draws) / number;
  std::vector<double> left_out;
  for (const Stratum& stratum : strata) stratum.add_left_out(left_out);
  return interval_of(estimate, resampled, left_out, options);
}

}  // namespace

Interval bootstrap_mean(std::span<const double> values, const BootstrapOptions& options) {
  Clusters single;
  for (const double value : values) single.push_back({value});
  return cluster_bootstrap(single, 0, options);
}

Interval cluster_bootstrap(std::span<const std::vector<double>> clusters, size_t block,
                           const BootstrapOptions& options) {
  std::vector<Stratum> one(1, Stratum(clusters, block));
  if (one.front().rings.empty()) one.clear();
  return bootstrap(one, block, options);
}

Interval stratified_bootstrap(std::span<const Clusters> strata, const BootstrapOptions& options) {
  std::vector<Stratum> drawn;
  std::vector<double> means;
  bool any_single = false;
  for (const Clusters& clusters : strata) {
    Stratum stratum(clusters, 0);
    if (stratum.rings.empty()) continue;
    means.push_back(stratum.mean());
    any_single |= stratum.rings.size() == 1;
    drawn.push_back(std::move(stratum));
  }
  if (any_single && drawn.size() > 1) return bootstrap_mean(means, options);
  return bootstrap(drawn, 0, options);
}

Interval wilson_interval(double hits, double trials, double confidence) {
  if (trials == 0) return {0, 0, 1};
  const double share = hits / trials;
  const double z = normal_quantile((1 + confidence) / 2), z2 = z * z;
  const double scale = 1 / (1 + z2 / trials);
  const double center = (share + z2 / (2 * trials)) * scale;
  const double variance = share * (1 - share) / trials + z2 / (4 * trials * trials);
  const double half = z * std::sqrt(variance) * scale;
  return {share, std::max(0.0, center - half), std::min(1.0, center + half)};
}

double mcnemar_exact(uint64_t only_first, uint64_t only_second) {
  const auto pairs = static_cast<double>(only_first + only_second);
  const auto fewer = static_cast<double>(std::min(only_first, only_second));
  double log_term = -pairs * std::log(2.0);  // of the binomial probability of i
  double tail = 0;
  for (double i = 0; i <= fewer; ++i) {
    tail += std::exp(log_term);
    log_term += std::log((pairs - i) / (i + 1));
  }
  return std::min(1.0, 2 * tail);
}

double sign_flip_p(std::span<const double> differences, uint32_t resamples, uint64_t seed) {
  const double observed = std::abs(std::accumulate(differences.begin(), differences.end(), 0.0));
  // Sums of the same numbers in another order of signs may differ by rounding alone.
  const double enough = observed * (1 - 1e-12);
  Draws draws(seed);
  uint32_t extreme = 1;  // the observed signs are one of the possible draws
  for (uint32_t resample = 0; resample < resamples; ++resample) {
    double sum = 0;
    uint64_t bits = 0;
    for (size_t i = 0; i < differences.size(); ++i, bits >>= 1) {
      if (i % 64 == 0) bits = draws.bits();
      sum += (bits & 1) != 0 ? differences[i] : -differences[i];
    }
    extreme += std::abs(sum) >= enough;
  }
  return static_cast<double>(extreme) / (static_cast<double>(resamples) + 1);
}

std::vector<double> holm_adjusted(std::span<const double> p_values) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return p_values[a] < p_values[b]; });
  std::vector<double> adjusted(p_values.size());
  double largest = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const double scaled = static_cast<double>(order.size() - rank) * p_values[order[rank]];
    largest = std::max(largest, std::min(1.0, scaled));
    adjusted[order[rank]] = largest;
  }
  return adjusted;
}

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kBetter:
      return "better";
    case Verdict::kNonInferior:
      return "non-inferior";
    case Verdict::kInconclusive:
      return "inconclusive";
    case Verdict::kWorse:
      return "worse";
    case Verdict::kEqual:
      return "equal";
  }
  return "";
}

Verdict verdict_of(const Interval& difference, double margin, double floor) {
  if (difference.low >= -floor && difference.high <= floor) return Verdict::kEqual;
  if (difference.low > 0) return Verdict::kBetter;
  if (difference.low > -margin) return Verdict::kNonInferior;
  if (difference.high < 0) return Verdict::kWorse;
  return Verdict::kInconclusive;
}

}  // namespace reprise::eval

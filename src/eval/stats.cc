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

// left_out: the estimate without each unit in turn.
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

// Sums of a cluster's values, laid out twice so that runs may pass its end.
struct Ring {
  std::vector<double> sums;  // [2 size + 1]
  size_t size = 0;

  explicit Ring(const std::vector<double>& values) : sums(2 * values.size() + 1, 0.0) {
    size = values.size();
    for (size_t i = 0; i < 2 * size; ++i) sums[i + 1] = sums[i] + values[i % size];
  }
  double total() const { return sums[size]; }

  double drawn(size_t block, Draws& draws) const {
    if (block == 0 || block >= size) return total();
    double sum = 0;
    for (size_t at = 0; at < size; at += block) {
      const size_t start = draws.below(size);
      sum += sums[start + std::min(block, size - at)] - sums[start];
    }
    return sum;
  }
};

}  // namespace

Interval bootstrap_mean(std::span<const double> values, const BootstrapOptions& options) {
  if (values.empty()) return {};
  const double estimate = mean_of(values);
  if (!std::isfinite(estimate) || options.resamples == 0) return {estimate, estimate, estimate};
  const auto count = static_cast<double>(values.size());
  Draws draws(options.seed);
  std::vector<double> resampled(options.resamples);
  for (double& mean : resampled) {
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += values[draws.below(values.size())];
    mean = sum / count;
  }
  std::vector<double> left_out;
  for (const double value : values) left_out.push_back(estimate * count - value);
  return interval_of(estimate, resampled, left_out, options);
}

Interval cluster_bootstrap(std::span<const std::vector<double>> clusters, size_t block,
                           const BootstrapOptions& options) {
  std::vector<Ring> rings;
  double total = 0, count = 0;
  for (const auto& cluster : clusters) {
    if (cluster.empty()) continue;
    total += rings.emplace_back(cluster).total();
    count += static_cast<double>(cluster.size());
  }
  if (rings.empty()) return {};
  const double estimate = total / count;
  if (!std::isfinite(estimate) || options.resamples == 0) return {estimate, estimate, estimate};
  Draws draws(options.seed);
  std::vector<double> resampled(options.resamples);
  for (double& mean : resampled) {
    double sum = 0, values = 0;
    for (size_t i = 0; i < rings.size(); ++i) {
      const Ring& ring = rings[draws.below(rings.size())];
      sum += ring.drawn(block, draws);
      values += static_cast<double>(ring.size);
    }
    mean = sum / values;
  }
  std::vector<double> left_out;
  for (const Ring& ring : rings) {
    if (rings.size() == 1) break;
    left_out.push_back((total - ring.total()) / (count - static_cast<double>(ring.size)));
  }
  return interval_of(estimate, resampled, left_out, options);
}

Interval wilson_interval(uint64_t hits, uint64_t trials, double confidence) {
  if (trials == 0) return {0, 0, 1};
  const auto n = static_cast<double>(trials);
  const double share = static_cast<double>(hits) / n;
  const double z = normal_quantile((1 + confidence) / 2);
  const double scale = 1 / (1 + z * z / n);
  const double center = (share + z * z / (2 * n)) * scale;
  const double half = z * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n)) * scale;
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

#include "eval/stats.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

namespace reprise::eval {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

// Numbers that are the same on every machine, unlike the standard distributions'.
class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {}
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }
  double exponential() { return -std::log(uniform()); }  // mean 1
  double normal() { return std::sqrt(2 * exponential()) * std::cos(6.283185307179586 * uniform()); }

 private:
  std::mt19937_64 random_;
};

void expect_same(const Interval& a, const Interval& b) {
  EXPECT_EQ(a.mean, b.mean);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
}

// Share of simulated runs whose interval holds the true mean.
template <class Run>
double coverage(double truth, Run run) {
  constexpr int kRuns = 1000;
  int covered = 0;
  for (int i = 0; i < kRuns; ++i) {
    Simulation simulation(static_cast<uint64_t>(i) + 1);
    const Interval interval = run(simulation, static_cast<uint64_t>(i));
    covered += interval.low <= truth && truth <= interval.high;
  }
  return covered / static_cast<double>(kRuns);
}

class CoverageTest : public testing::TestWithParam<BootstrapInterval> {};

TEST_P(CoverageTest, OfMeansIsTheConfidence) {
  const double share = coverage(1.0, [&](Simulation& simulation, uint64_t seed) {
    std::vector<double> values(150);
    for (double& value : values) value = simulation.exponential();
    // BCa estimates its bias from the resamples and needs more of them.
    return bootstrap_mean(values, {.resamples = 600, .seed = seed, .interval = GetParam()});
  });
  EXPECT_GE(share, 0.93);
  EXPECT_LE(share, 0.97);
}

INSTANTIATE_TEST_SUITE_P(Intervals, CoverageTest,
                         testing::Values(BootstrapInterval::kPercentile, BootstrapInterval::kBca));

TEST(ClusterCoverageTest, OfClusteredMeansIsTheConfidence) {
  const double share = coverage(0.0, [&](Simulation& simulation, uint64_t seed) {
    std::vector<std::vector<double>> documents(100, std::vector<double>(8));
    for (auto& document : documents) {
      const double center = simulation.normal();
      double drift = 0;
      for (double& value : document) {
        drift = 0.5 * drift + 0.5 * simulation.normal();
        value = center + drift;
      }
    }
    return cluster_bootstrap(
        documents, 4, {.resamples = 300, .seed = seed, .interval = BootstrapInterval::kPercentile});
  });
  EXPECT_GE(share, 0.93);
  EXPECT_LE(share, 0.97);
}

TEST(BootstrapTest, SeedDecides) {
  Simulation simulation(7);
  std::vector<double> values(50);
  for (double& value : values) value = simulation.exponential();
  const std::vector<std::vector<double>> clusters{values, {1, 2, 3}, {4, 5}};
  expect_same(bootstrap_mean(values), bootstrap_mean(values));
  expect_same(cluster_bootstrap(clusters, 2), cluster_bootstrap(clusters, 2));
  const BootstrapOptions other{.seed = 4321};
  EXPECT_NE(bootstrap_mean(values).low, bootstrap_mean(values, other).low);
  EXPECT_NE(cluster_bootstrap(clusters, 2).low, cluster_bootstrap(clusters, 2, other).low);
}

// scipy.stats.bootstrap((values,), numpy.mean, n_resamples=200000, method=...); the resamples'
// quantiles are steps of 0.01 and more apart in the sparse tail.
TEST(BootstrapTest, AgreesWithScipy) {
  const std::vector<double> values{0.2, 0.5, 0.9, 1.3, 1.4, 2.2, 2.9, 3.1, 4.8, 9.7};
  BootstrapOptions options{.resamples = 200'000};
  const Interval bca = bootstrap_mean(values, options);
  EXPECT_NEAR(bca.mean, 2.7, 1e-12);
  EXPECT_NEAR(bca.low, 1.52, 0.03);
  EXPECT_NEAR(bca.high, 5.25, 0.05);
  options.interval = BootstrapInterval::kPercentile;
  const Interval plain = bootstrap_mean(values, options);
  EXPECT_NEAR(plain.low, 1.29, 0.03);
  EXPECT_NEAR(plain.high, 4.56, 0.05);
}

TEST(BootstrapTest, ConstantsAndSingleValuesHaveNoWidth) {
  for (const auto interval : {BootstrapInterval::kPercentile, BootstrapInterval::kBca}) {
    const BootstrapOptions options{.resamples = 100, .interval = interval};
    const Interval tenths = bootstrap_mean(std::vector<double>(20, 0.1), options);
    EXPECT_NEAR(tenths.mean, 0.1, 1e-15);
    expect_same(tenths, {tenths.mean, tenths.mean, tenths.mean});
    expect_same(bootstrap_mean(std::vector<double>{3}, options), {3, 3, 3});
    expect_same(bootstrap_mean({}, options), {0, 0, 0});
    expect_same(cluster_bootstrap({}, 4, options), {0, 0, 0});
    expect_same(cluster_bootstrap(std::vector<std::vector<double>>{{}, {2, 4}}, 0, options),
                {3, 3, 3});
  }
}

TEST(BootstrapTest, ValuesThatAreNotFiniteGiveNoInterval) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(bootstrap_mean(std::vector<double>{1, infinity}).low, infinity);
  EXPECT_TRUE(std::isnan(bootstrap_mean(std::vector<double>{infinity, -infinity}).high));
  EXPECT_EQ(cluster_bootstrap(std::vector<std::vector<double>>{{1, infinity}}, 1).high, infinity);
}

TEST(ClusterBootstrapTest, BlocksGiveOneClusterAWidth) {
  Simulation simulation(3);
  std::vector<double> values(512);
  for (double& value : values) value = simulation.normal();
  const std::vector<std::vector<double>> one{values};
  const Interval whole = cluster_bootstrap(one, 0);
  EXPECT_EQ(whole.low, whole.high);
  const Interval blocks = cluster_bootstrap(one, 8);
  EXPECT_LT(blocks.low, blocks.mean);
  // Independent values: standard error 1 / sqrt(512), the interval about 3.92 of them wide.
  EXPECT_NEAR((blocks.high - blocks.low) * std::sqrt(512.0), 3.92, 0.6);
}

TEST(ClusterBootstrapTest, DependentValuesNeedBlocks) {
  Simulation simulation(5);
  std::vector<double> values;
  for (int i = 0; i < 64; ++i) values.insert(values.end(), 16, simulation.normal());
  const std::vector<std::vector<double>> one{values};
  const auto width = [](const Interval& interval) { return interval.high - interval.low; };
  EXPECT_GT(width(cluster_bootstrap(one, 64)), 2.5 * width(cluster_bootstrap(one, 1)));
}

TEST(ClusterBootstrapTest, LongClustersWeighMore) {
  const std::vector<std::vector<double>> clusters{std::vector<double>(30, 1.0), {5.0, 5.0}};
  EXPECT_DOUBLE_EQ(cluster_bootstrap(clusters, 4).mean, 40.0 / 32);
}

TEST(StratifiedBootstrapTest, StrataCountAlikeAndAreDrawnApart) {
  // Whatever is drawn, each stratum has its own mean.
  const std::vector<Clusters> apart{{{1}, {1}, {1}, {1}, {1}}, {{0}, {0}}, {{}}};
  expect_same(stratified_bootstrap(apart), {0.5, 0.5, 0.5});
  expect_same(stratified_bootstrap({}), {0, 0, 0});
  const Clusters values{{0.2}, {0.5}, {0.9}, {1.3}, {1.4}, {2.2}, {2.9}, {3.1}, {4.8}, {9.7}};
  expect_same(stratified_bootstrap(std::vector<Clusters>{values}), cluster_bootstrap(values, 0));
}

TEST(StratifiedBootstrapTest, OfSingleSamplesMeansAreDrawn) {
  const std::vector<Clusters> strata{{{0.2}}, {{0.5}}, {{0.8}, {1.0}}, {{0.1}}};
  expect_same(stratified_bootstrap(strata),
              bootstrap_mean(std::vector<double>{0.2, 0.5, 0.9, 0.1}));
  EXPECT_LT(stratified_bootstrap(strata).low, 0.3);
}

TEST(StratifiedBootstrapTest, OfUnequalStrataTheCoverageIsTheConfidence) {
  const size_t sizes[] = {40, 3, 4, 4, 4, 4, 4, 4, 8};  // of means 0 to 8
  const double share = coverage(4.0, [&](Simulation& simulation, uint64_t seed) {
    std::vector<Clusters> strata;
    for (const size_t size : sizes) {
      const auto mean = static_cast<double>(strata.size());
      Clusters& clusters = strata.emplace_back();
      for (size_t i = 0; i < size; ++i) clusters.push_back({mean + simulation.normal()});
    }
    return stratified_bootstrap(strata, {.resamples = 600, .seed = seed});
  });
  EXPECT_GE(share, 0.93);
  EXPECT_LE(share, 0.97);
}

// scipy.stats.binomtest(hits, trials).proportion_ci(method="wilson")
TEST(WilsonTest, AgreesWithScipy) {
  const Interval some = wilson_interval(7, 10);
  EXPECT_DOUBLE_EQ(some.mean, 0.7);
  EXPECT_NEAR(some.low, 0.396778147461, 1e-9);
  EXPECT_NEAR(some.high, 0.892208732594, 1e-9);
  const Interval none = wilson_interval(0, 10, 0.9);
  EXPECT_EQ(none.low, 0.0);
  EXPECT_NEAR(none.high, 0.212941970083, 1e-9);
  EXPECT_EQ(wilson_interval(10, 10).high, 1.0);
  expect_same(wilson_interval(0, 0), {0, 0, 1});
}

// scipy.stats.binomtest(only_first, only_first + only_second).pvalue
TEST(McNemarTest, AgreesWithScipy) {
  EXPECT_NEAR(mcnemar_exact(1, 9), 22.0 / 1024, 1e-12);
  EXPECT_NEAR(mcnemar_exact(9, 1), 22.0 / 1024, 1e-12);
  EXPECT_NEAR(mcnemar_exact(40, 61), 0.0460440669293, 1e-9);
  EXPECT_NEAR(mcnemar_exact(1500, 1600), 0.0753716970753, 1e-9);
  EXPECT_EQ(mcnemar_exact(0, 0), 1.0);
  EXPECT_EQ(mcnemar_exact(5, 5), 1.0);
}

TEST(SignFlipTest, CountsSumsAsFarFromZero) {
  // All ten of one sign: 2 of the 1024 ways to choose signs are as extreme.
  const std::vector<double> same(10, 0.3);
  EXPECT_NEAR(sign_flip_p(same, 200'000), 2.0 / 1024, 4e-4);
  EXPECT_EQ(sign_flip_p(std::vector<double>(100, 1.0), 99), 0.01);
  EXPECT_EQ(sign_flip_p(std::vector<double>(5, 0.0)), 1.0);
  EXPECT_EQ(sign_flip_p({}), 1.0);
}

TEST(SignFlipTest, IsUniformWithoutADifference) {
  int small = 0;
  for (uint64_t run = 0; run < 1000; ++run) {
    Simulation simulation(run);
    std::vector<double> differences(40);
    for (double& difference : differences) difference = simulation.normal();
    small += sign_flip_p(differences, 199, run) <= 0.05;
  }
  EXPECT_GE(small, 30);  // 50 expected, standard deviation 7
  EXPECT_LE(small, 70);
}

TEST(HolmTest, MultipliesAndKeepsTheOrder) {
  // Sorted .01 .02 .03 .04 times 4 3 2 1 is .04 .06 .06 .04, made monotone.
  EXPECT_THAT(holm_adjusted(std::vector<double>{0.03, 0.01, 0.04, 0.02}),
              ElementsAre(DoubleNear(0.06, 1e-12), DoubleNear(0.04, 1e-12), DoubleNear(0.06, 1e-12),
                          DoubleNear(0.06, 1e-12)));
  EXPECT_THAT(holm_adjusted(std::vector<double>{0.6, 0.5}), ElementsAre(1.0, 1.0));
  EXPECT_THAT(holm_adjusted({}), ElementsAre());
}

TEST(VerdictTest, ComesFromTheInterval) {
  const auto verdict = [](double low, double high, double floor = 0) {
    return verdict_name(verdict_of({(low + high) / 2, low, high}, 1.0, floor));
  };
  EXPECT_EQ(verdict(0.1, 2), "better");
  EXPECT_EQ(verdict(-0.9, 2), "non-inferior");
  EXPECT_EQ(verdict(-0.9, -0.1), "non-inferior");
  EXPECT_EQ(verdict(-1, 2), "inconclusive");
  EXPECT_EQ(verdict(-3, -0.1), "worse");
  EXPECT_EQ(verdict(0, 0), "equal");
  EXPECT_EQ(verdict(-0.1, 0.1, 0.1), "equal");
  EXPECT_EQ(verdict(0.05, 0.1, 0.1), "equal");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(verdict(nan, nan), "inconclusive");
}

}  // namespace
}  // namespace reprise::eval

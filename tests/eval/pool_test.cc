#include "eval/pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/compare.h"

namespace reprise::eval::test {
namespace {

// Samples of two subtasks, drawn with a seed.
RunFile drawn(const std::string& policy, uint64_t seed, size_t samples, double loss) {
  RunFile file;
  file.path = policy + std::to_string(seed);
  RunRecord run;
  run.id = file.path;
  run.policy = policy;
  run.seed = seed;
  run.data = {{"ruler", "hash" + std::to_string(seed)}};
  file.runs = {run};
  for (size_t i = 0; i < samples; ++i) {
    SampleRecord sample;
    sample.run = run.id;
    sample.task = "ruler";
    sample.id = (i % 2 == 0 ? "vt/" : "cwe/") + std::to_string(i);
    sample.finish = "end";
    sample.scores = {{"match", 0.1 * static_cast<double>((i + seed) % 7) - loss}};
    file.samples.push_back(sample);
  }
  return file;
}

TEST(PoolSeeds, CountsSamplesOfAllSeeds) {
  std::vector<RunFile> files = {drawn("full", 1, 10, 0), drawn("quest", 1, 10, 0.01),
                                drawn("full", 2, 14, 0), drawn("quest", 2, 14, 0.03)};
  EXPECT_FALSE(join_runs(files, {}).has_value()) << "their samples differ";
  ASSERT_TRUE(pool_seeds(files).has_value());
  const Settings settings = join_runs(files, {}).value();
  ASSERT_EQ(settings.all.size(), 2u);
  const Comparison comparison = compare(settings, {}).value();
  ASSERT_EQ(comparison.tasks.size(), 1u);
  const Row& quest = comparison.tasks[0].rows[1];
  EXPECT_EQ(quest.difference.n, 24u);
  EXPECT_NEAR(quest.difference.value.mean, -(10 * 0.01 + 14 * 0.03) / 24, 1e-12);
  EXPECT_TRUE(settings.all[0].tasks.at("ruler").samples.contains("vt/0#2"));
}

TEST(PoolSeeds, ASeedMissingFromAPolicyIsADifference) {
  std::vector<RunFile> files = {drawn("full", 1, 10, 0), drawn("full", 2, 10, 0),
                                drawn("quest", 1, 10, 0.01)};
  ASSERT_TRUE(pool_seeds(files).has_value());
  EXPECT_FALSE(join_runs(files, {}).has_value());
}

TEST(PoolSeeds, RefusesSamplesThatDoNotDependOnTheSeed) {
  std::vector<RunFile> files = {drawn("full", 1, 10, 0), drawn("full", 2, 10, 0)};
  files[1].runs[0].data[0].second = files[0].runs[0].data[0].second;
  const Status pooled = pool_seeds(files);
  ASSERT_FALSE(pooled.has_value());
  EXPECT_THAT(pooled.error().message, testing::HasSubstr("ruler has the same samples with seeds"));
}

TEST(PoolSeeds, RefusesOtherSamplesOfTheSameSeed) {
  std::vector<RunFile> files = {drawn("full", 1, 10, 0), drawn("full", 1, 14, 0)};
  files[1].runs[0].data[0].second = "other";
  const Status pooled = pool_seeds(files);
  ASSERT_FALSE(pooled.has_value());
  EXPECT_THAT(pooled.error().message, testing::HasSubstr("other samples of ruler"));
}

TEST(PoolSeeds, RunsOfOneSeedStayShards) {
  std::vector<RunFile> files = {drawn("full", 1, 10, 0), drawn("full", 1, 14, 0)};
  files[1].runs[0].data = {{"needle", "other"}};
  for (SampleRecord& sample : files[1].samples) sample.task = "needle";
  ASSERT_TRUE(pool_seeds(files).has_value());
  EXPECT_EQ(join_runs(files, {}).value().all.size(), 1u);
}

}  // namespace
}  // namespace reprise::eval::test

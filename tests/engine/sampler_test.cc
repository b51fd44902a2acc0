#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace reprise {
namespace {

int32_t sample_once(Sampler& sampler, std::vector<float> logits,
                    const std::vector<int32_t>& history = {}) {
  return sampler.sample(logits, history);
}

std::map<int32_t, int> sample_many(const SamplingOptions& options, const std::vector<float>& logits,
                                   int count) {
  Sampler sampler(options);
  std::map<int32_t, int> seen;
  for (int i = 0; i < count; ++i) ++seen[sample_once(sampler, logits)];
  return seen;
}

std::set<int32_t> tokens_of(const std::map<int32_t, int>& seen) {
  std::set<int32_t> tokens;
  for (const auto& [token, count] : seen) tokens.insert(token);
  return tokens;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdOfEqualOnes) {
  Sampler sampler({});
  EXPECT_EQ(sample_once(sampler, {0.0f, 3.0f, 2.0f}), 1);
  EXPECT_EQ(sample_once(sampler, {1.0f, 3.0f, 3.0f}), 1);
}

TEST(Sampler, NanNeverWins) {
  for (const float temp : {0.0f, 1.0f}) {
    SamplingOptions options;
    options.temp = temp;
    Sampler sampler(options);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(sample_once(sampler, {NAN, 1.0f, NAN}), 1);
  }
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  SamplingOptions options;
  options.temp = 2.0f;
  const std::vector<float> logits = {2.0f, 0.0f, -2.0f};
  const int count = 20000;
  const auto seen = sample_many(options, logits, count);
  const double mass = std::exp(1.0) + 1.0 + std::exp(-1.0);
  for (int token = 0; token < 3; ++token) {
    const double p = std::exp(logits[token] / 2.0) / mass;
    const double sigma = std::sqrt(count * p * (1 - p));
    EXPECT_NEAR(seen.at(token), count * p, 5 * sigma) << token;
  }
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  SamplingOptions options;
  options.temp = 5.0f;
  options.top_k = 2;
  EXPECT_EQ(tokens_of(sample_many(options, {0.0f, 1.0f, 0.9f, 0.5f}, 500)), (std::set{1, 2}));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesTheMass) {
  SamplingOptions options;
  options.temp = 1.0f;
  options.top_p = 0.75f;
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  EXPECT_EQ(tokens_of(sample_many(options, logits, 500)), (std::set{0, 1}));
  options.top_p = 0.0f;
  EXPECT_EQ(tokens_of(sample_many(options, logits, 100)), (std::set{0}));
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheLikeliest) {
  SamplingOptions options;
  options.temp = 1.0f;
  options.min_p = 0.5f;
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  EXPECT_EQ(tokens_of(sample_many(options, logits, 500)), (std::set{0, 1}));
}

TEST(Sampler, EqualSeedsGiveEqualChoices) {
  SamplingOptions options;
  options.temp = 1.0f;
  options.seed = 42;
  Sampler a(options), b(options);
  options.seed = 43;
  Sampler other(options);
  const std::vector<float> logits(100, 0.0f);
  int differences = 0;
  for (int i = 0; i < 100; ++i) {
    const int32_t token = sample_once(a, logits);
    EXPECT_EQ(token, sample_once(b, logits));
    differences += token != sample_once(other, logits);
  }
  EXPECT_GT(differences, 50);
}

TEST(Sampler, InfinitiesAreLikelyOrUnlikely) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  SamplingOptions options;
  options.temp = 1.0f;
  Sampler sampler(options);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(sample_once(sampler, {1.0f, kInfinity, 2.0f, 3.0f, -5.0f}), 1);
    EXPECT_EQ(sample_once(sampler, {-kInfinity, -kInfinity, 2.0f, -kInfinity}), 2);
  }
}

TEST(Sampler, PenaltyLowersRecentTokensOnce) {
  SamplingOptions options;
  options.repeat_penalty = 2.0f;
  options.repeat_window = 3;
  Sampler sampler(options);
  EXPECT_EQ(sample_once(sampler, {3.0f, 2.0f}, {0, 0, 0}), 1);     // 3 / 2 < 2, not 3 / 8
  EXPECT_EQ(sample_once(sampler, {5.0f, 2.0f}, {0, 0, 0}), 0);     // 5 / 2 > 2
  EXPECT_EQ(sample_once(sampler, {-1.0f, -1.5f}, {0}), 1);         // -1 * 2 < -1.5
  EXPECT_EQ(sample_once(sampler, {3.0f, 2.0f}, {0, 1, 1, 1}), 0);  // 0 has left the window
}

}  // namespace
}  // namespace reprise

// Distributions, and texts read token by token under several policies.
#include "eval/trajectory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/tiny_model.h"
#include "eval/settings.h"

namespace reprise::eval {
namespace {

const std::function<bool()> kGoOn = [] { return true; };

Distribution softmax_of(const std::vector<float>& logits) {
  Distribution distribution;
  log_softmax(logits, distribution);
  return distribution;
}

// log(sum(exp(logits))) - logits[token] in the widest type there is.
double exact_nll(std::span<const float> logits, int32_t token) {
  long double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  const auto wanted = static_cast<long double>(logits[static_cast<size_t>(token)]);
  return static_cast<double>(std::log(sum) - wanted);
}

// Every exponential is rounded to single precision, so their sum errs by no more than that.
constexpr double kTolerance = 2 * std::numeric_limits<float>::epsilon();

TEST(Distribution, KullbackLeiblerByHand) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): KL = 1/2 ln 2 - 1/4 ln 2.
  const float ln2 = std::log(2.0f);
  const Distribution p = softmax_of({ln2, 0, 0}), q = softmax_of({0, 0, ln2});
  EXPECT_NEAR(kl_divergence(p, q), 0.25 * std::log(2.0), 4 * kTolerance);
  EXPECT_EQ(kl_divergence(p, p), 0.0);
  EXPECT_NEAR(p.nll(std::vector<float>{ln2, 0, 0}, 0), std::log(2.0), kTolerance);
}

TEST(Distribution, TheLikeliestComeFirstAndTheFirstOfEquals) {
  const Distribution d = softmax_of({1, 3, 2, 3, 0, -1, 2});
  EXPECT_THAT(d.top, testing::ElementsAre(1, 3, 2, 6, 0));
  EXPECT_THAT(softmax_of({1, 2}).top, testing::ElementsAre(1, 0, -1, -1, -1));
  EXPECT_DOUBLE_EQ(top_overlap(d, softmax_of({9, 9, 0, 9, 9, 9, 0})), 3.0 / 5);
  EXPECT_DOUBLE_EQ(top_overlap(d, d), 1.0);
}

TEST(Distribution, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {10'000, 9'999, -10'000};
  EXPECT_NEAR(softmax_of(logits).nll(logits, 1), 1 + std::log1p(std::exp(-1.0)), 1e-3);
}

TEST(TrajectoryPlan, TheSecondHalfAtMost) {
  const std::vector<int32_t> text(100);
  const auto plan = TrajectoryPlan::of(text, 1000, 20);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->first, 79u);
  EXPECT_EQ(plan->steps, 20u);
  const auto half = TrajectoryPlan::of(text, 61, 1000);
  ASSERT_TRUE(half);
  EXPECT_EQ(half->tokens.size(), 61u);
  EXPECT_EQ(half->steps, 30u);
  EXPECT_EQ(half->first, 30u);
  EXPECT_EQ(TrajectoryPlan::of(std::span(text).first(3), 10, 2).error().code, ErrorCode::kBadValue);
}

class TrajectoryTest : public testing::Test {
 protected:
  std::vector<Trajectory> read(const std::vector<std::string>& policies, size_t steps = 40) {
    const auto plan = TrajectoryPlan::of(text_, text_.size(), steps);
    auto trajectories = read_trajectories(*engine_, *plan, policies, kGoOn);
    EXPECT_TRUE(trajectories);
    return std::move(*trajectories);
  }

  std::unique_ptr<Engine> engine_ = test::tiny_engine();
  std::vector<int32_t> text_ = test::tiny_prompt(200);
};

TEST_F(TrajectoryTest, NllIsComputedFromTheLogitsOfForcedTokens) {
  const Trajectory trajectory = read({"full"})[0];
  ASSERT_EQ(trajectory.steps.size(), 40u);

  Request request;
  request.prompt.assign(text_.begin(), text_.begin() + 159);
  request.forced.assign(text_.begin() + 159, text_.end());
  request.max_tokens = 41;
  request.ignore_end = true;
  std::vector<double> expected;
  request.on_logits = [&](std::span<const float> logits) {
    expected.push_back(exact_nll(logits, text_[159 + expected.size()]));
  };
  ASSERT_TRUE((*engine_->open())->generate(request));
  ASSERT_EQ(expected.size(), 41u);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(trajectory.steps[i].position, 160 + i);
    EXPECT_NEAR(trajectory.steps[i].nll, expected[i + 1], kTolerance) << i;
  }
}

TEST_F(TrajectoryTest, FullEqualsItselfExactly) {
  const std::vector<Trajectory> both = read({"full", "full"});
  for (const Trajectory& trajectory : both) {
    EXPECT_TRUE(trajectory.compared);
    ASSERT_EQ(trajectory.steps.size(), 40u);
    for (const TrajectoryStep& step : trajectory.steps) {
      EXPECT_EQ(step.kl, 0.0);
      EXPECT_EQ(step.top1, 1.0);
      EXPECT_EQ(step.top5, 1.0);
      EXPECT_EQ(step.nll_difference, 0.0);
    }
  }
}

TEST_F(TrajectoryTest, CompanyDoesNotChangeAPolicy) {
  const auto alone = read({"full", "random:budget=32"});
  const auto together = read({"full", "streaming:sink=4,window=16", "random:budget=32"});
  double kl = 0;
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(alone[1].steps[i].kl, together[2].steps[i].kl);
    EXPECT_EQ(alone[1].steps[i].nll, together[2].steps[i].nll);
    EXPECT_GE(alone[1].steps[i].kl, 0.0);
    kl += alone[1].steps[i].kl;
  }
  EXPECT_GT(kl, 1e-6) << "reading 32 of 200 keys must show";
}

TEST_F(TrajectoryTest, PoliciesShareWhatFullHasRead) {
  const auto trajectories = read({"full", "random:budget=32"});
  EXPECT_EQ(trajectories[0].answer->counters.reused_tokens, 0u);
  EXPECT_GT(trajectories[1].answer->counters.reused_tokens, 100u);
}

TEST_F(TrajectoryTest, OneSequenceAtATimeIsEnough) {
  const auto expected = read({"full", "random:budget=32"});
  EngineOptions options = test::tiny_options();
  options.batch = 1;
  engine_ = test::tiny_engine(options);
  const auto alone = read({"full", "random:budget=32"});
  for (size_t i = 0; i < 40; ++i) EXPECT_EQ(alone[1].steps[i].kl, expected[1].steps[i].kl);
}

TEST_F(TrajectoryTest, AFailedReferenceLeavesLikelihoods) {
  const auto trajectories = read({"no-such-policy", "full"});
  EXPECT_FALSE(trajectories[0].answer);
  ASSERT_TRUE(trajectories[1].answer);
  EXPECT_FALSE(trajectories[1].compared);
  const Scores scores = trajectory_scores(trajectories[1], "kl", 0);
  EXPECT_EQ(scores.front().first, "nll");
}

TEST_F(TrajectoryTest, StopsBetweenSteps) {
  const auto plan = TrajectoryPlan::of(text_, text_.size(), 40);
  int asked = 0;
  const std::vector<std::string> policies = {"full", "random"};
  const auto stopped = read_trajectories(*engine_, *plan, policies, [&] { return ++asked < 10; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(engine_->step()) << "nothing is left running";
}

TEST(TrajectoryScores, MeansBucketsAndPercentiles) {
  Trajectory trajectory;
  trajectory.compared = true;
  for (uint64_t position = 500; position < 600; ++position) {
    TrajectoryStep& step = trajectory.steps.emplace_back();
    step.position = position;
    step.nll = position < 512 ? 2 : 1;
    step.kl = static_cast<double>(position - 500);
    step.top1 = position % 2 == 0 ? 1 : 0;
  }
  const Scores scores = trajectory_scores(trajectory, "kl", 100);
  EXPECT_EQ(scores.front(), (std::pair<std::string, double>("kl", 49.5)));
  EXPECT_DOUBLE_EQ(find_number(scores, "nll"), 1.12);
  EXPECT_DOUBLE_EQ(find_number(scores, "nll_256"), 2);
  EXPECT_DOUBLE_EQ(find_number(scores, "nll_512"), 1);
  EXPECT_DOUBLE_EQ(find_number(scores, "kl_p99"), 98.01);
  EXPECT_DOUBLE_EQ(find_number(scores, "top1"), 0.5);
  EXPECT_DOUBLE_EQ(find_number(scores, "bits_per_byte"), 1.12 / std::log(2.0));
}

}  // namespace
}  // namespace reprise::eval

// One text read token by token under several policies, every distribution held against full
// attention's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/records.h"
#include "eval/run/distribution.h"
#include "reprise/engine.h"

namespace reprise::eval {

/// tokens [0, first) are the prompt; then `steps` tokens are decoded by the policy, each of which
/// predicts the one after it: those at positions [first + 1, first + steps]. What the prompt's last
/// row predicts is left out, because no policy that acts while decoding has a part in it.
struct TrajectoryPlan {
  std::span<const int32_t> tokens;
  size_t first = 0, steps = 0;

  /// The end of a text's first length tokens: their second half at most. kBadValue for a text that
  /// is too short to have one.
  static Result<TrajectoryPlan> of(std::span<const int32_t> text, size_t length, size_t steps);
};

struct TrajectoryStep {
  uint64_t position = 0;      // of the token that is predicted
  double nll = 0;             // nats
  double kl = 0;              // KL(reference || policy), nats
  double top1 = 0;            // 1: both find the same token likeliest
  double top5 = 0;            // share of the five likeliest that both have
  double nll_difference = 0;  // |policy - reference|
};

/// One policy on the text.
struct Trajectory {
  Result<Answer> answer;
  bool compared = false;  // kl and what follows it were measured; not where the reference failed
  std::vector<TrajectoryStep> steps;
};

/// policies[0] is the reference. Distributions are kept only until every policy has used them.
/// Errors: kCancelled when go_on says no.
Result<std::vector<Trajectory>> read_trajectories(Engine& engine, const TrajectoryPlan& plan,
                                                  std::span<const std::string> policies,
                                                  const std::function<bool()>& go_on);

/// Means over the steps, headline first: nll (and nll_256: of positions from 256 to 511, for every
/// doubling), bits_per_byte, kl with its percentiles over the steps, top1, top5, nll_difference.
/// bytes: of the text of the predicted tokens.
Scores trajectory_scores(const Trajectory& trajectory, std::string_view headline, size_t bytes);

NamedNumbers step_values(const TrajectoryStep& step, bool compared);

}  // namespace reprise::eval

#include "eval/trajectory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numbers>
#include <utility>

#include "base/percentile.h"
#include "base/try.h"
#include "eval/run/measures.h"
#include "eval/run/together.h"

namespace reprise::eval {
namespace {

constexpr size_t kShortestText = 4;  // tokens: something to read, something to predict

// The reference's distributions, each dropped after its last use.
class Reference {
 public:
  Reference(size_t steps, size_t users) : steps_(steps), users_left_(steps, users) {}

  void set(size_t step, const Distribution& distribution, double nll) {
    if (users_left_[step] > 0) steps_[step] = {distribution, nll};
  }
  /// Compares a policy's step with the reference's; false when there is none.
  bool compare(size_t step, const Distribution& distribution, TrajectoryStep& scores) {
    Entry& entry = steps_[step];
    if (entry.distribution.log_p.empty()) return false;
    scores.kl = kl_divergence(entry.distribution, distribution);
    scores.top1 = entry.distribution.top[0] == distribution.top[0] ? 1 : 0;
    scores.top5 = top_overlap(entry.distribution, distribution);
    scores.nll_difference = std::abs(scores.nll - entry.nll);
    if (--users_left_[step] == 0) entry = {};
    return true;
  }

 private:
  struct Entry {
    Distribution distribution;
    double nll = 0;
  };
  std::vector<Entry> steps_;
  std::vector<size_t> users_left_;
};

// Follows one policy through the logits that it gives.
class Follower {
 public:
  Follower(const TrajectoryPlan& plan, Reference& reference, bool is_reference)
      : plan_(plan), reference_(reference), is_reference_(is_reference) {}

  void see(std::span<const float> logits) {
    const size_t row = rows_++;
    if (row == 0) return;  // the prompt's last row
    TrajectoryStep& step = steps.emplace_back();
    step.position = plan_.first + row;
    log_softmax(logits, distribution_);
    step.nll = distribution_.nll(logits, plan_.tokens[step.position]);
    if (is_reference_) reference_.set(row - 1, distribution_, step.nll);
    compared = reference_.compare(row - 1, distribution_, step) && compared;
  }

  std::vector<TrajectoryStep> steps;
  bool compared = true;

 private:
  const TrajectoryPlan& plan_;
  Reference& reference_;
  bool is_reference_;
  Distribution distribution_;
  size_t rows_ = 0;
};

Request forced_request(const TrajectoryPlan& plan, Follower& follower) {
  Request request;
  const auto prompt = plan.tokens.first(plan.first);
  const auto forced = plan.tokens.subspan(plan.first, plan.steps + 1);
  request.prompt.assign(prompt.begin(), prompt.end());
  request.forced.assign(forced.begin(), forced.end());
  request.max_tokens = static_cast<uint32_t>(forced.size());
  request.ignore_end = true;
  request.on_logits = [&follower](std::span<const float> logits) { follower.see(logits); };
  return request;
}

template <class Field>
std::vector<double> column(const Trajectory& trajectory, Field field) {
  std::vector<double> values;
  for (const TrajectoryStep& step : trajectory.steps) values.push_back(step.*field);
  return values;
}

// [0, 256), [256, 512), [512, 1024), ...: where the bucket of a position begins.
uint64_t bucket_of(uint64_t position) {
  constexpr uint64_t kFirstBucket = 256;
  return position < kFirstBucket ? 0 : std::bit_floor(position);
}

}  // namespace

Result<TrajectoryPlan> TrajectoryPlan::of(std::span<const int32_t> text, size_t length,
                                          size_t steps) {
  const size_t used = std::min(text.size(), length);
  if (used < kShortestText)
    return fail(ErrorCode::kBadValue, "the text has {} tokens, {} are needed", used, kShortestText);
  TrajectoryPlan plan;
  plan.tokens = text.first(used);
  plan.steps = std::min(steps, (used - 1) / 2);
  plan.first = used - 1 - plan.steps;
  return plan;
}

Result<std::vector<Trajectory>> read_trajectories(Engine& engine, const TrajectoryPlan& plan,
                                                  std::span<const std::string> policies,
                                                  const std::function<bool()>& go_on) {
  Reference reference(plan.steps, policies.size());
  std::vector<Follower> followers;
  followers.reserve(policies.size());  // requests refer to them
  std::vector<PolicyRequest> requests;
  for (size_t i = 0; i < policies.size(); ++i) {
    followers.emplace_back(plan, reference, i == 0);
    requests.push_back({policies[i], forced_request(plan, followers.back())});
  }
  REPRISE_TRY(auto answers, answer_together(engine, std::move(requests), go_on));
  std::vector<Trajectory> trajectories;
  for (size_t i = 0; i < policies.size(); ++i)
    trajectories.push_back(
        {std::move(answers[i]), followers[i].compared, std::move(followers[i].steps)});
  return trajectories;
}

Scores trajectory_scores(const Trajectory& trajectory, std::string_view headline, size_t bytes) {
  const std::vector<double> nll = column(trajectory, &TrajectoryStep::nll);
  Scores scores = {{"nll", mean(nll)}};
  if (trajectory.compared) {
    const std::vector<double> kl = column(trajectory, &TrajectoryStep::kl);
    scores.insert(scores.end(),
                  {{"kl", mean(kl)},
                   {"kl_p95", percentile(kl, 0.95)},
                   {"kl_p99", percentile(kl, 0.99)},
                   {"top1", mean(column(trajectory, &TrajectoryStep::top1))},
                   {"top5", mean(column(trajectory, &TrajectoryStep::top5))},
                   {"nll_difference", mean(column(trajectory, &TrajectoryStep::nll_difference))}});
  }
  std::map<uint64_t, std::vector<double>> buckets;
  for (const TrajectoryStep& step : trajectory.steps)
    buckets[bucket_of(step.position)].push_back(step.nll);
  for (const auto& [begin, values] : buckets)
    scores.emplace_back(fmt::format("nll_{}", begin), mean(values));
  if (bytes > 0) {
    const double bits = mean(nll) * static_cast<double>(nll.size()) / std::numbers::ln2;
    scores.emplace_back("bits_per_byte", bits / static_cast<double>(bytes));
  }
  std::stable_partition(scores.begin(), scores.end(),
                        [&](const auto& score) { return score.first == headline; });
  return scores;
}

NamedNumbers step_values(const TrajectoryStep& step, bool compared) {
  if (!compared) return {{"nll", step.nll}};
  return {{"nll", step.nll},
          {"kl", step.kl},
          {"top1", step.top1},
          {"top5", step.top5},
          {"nll_difference", step.nll_difference}};
}

}  // namespace reprise::eval

#include "methods/decorators/auto.h"

#include <algorithm>

namespace reprise {
namespace {

// A trial's first step finds caches that the other policy left, so the faster of two counts.
constexpr bool kTrialUsesInner[] = {false, false, true, true};
constexpr size_t kTrials = std::size(kTrialUsesInner);
// What saves less is not worth reading fewer keys.
constexpr double kPays = 0.9;

}  // namespace

AutoPolicy::AutoPolicy(const AutoOptions& options, const ModelConfig&,
                       std::unique_ptr<Policy> wrapped)
    : PolicyDecorator(std::move(wrapped)), from_(static_cast<int32_t>(options.from)) {}

void AutoPolicy::select(const QueryRows& rows, Selection& selection) {
  if (rows.phase == kernels::Phase::kPrefill) return inner().select(rows, selection);
  if (rows.first() != position_) begin_step(rows.first());
  if (inner_now_) inner().select(rows, selection);
}

void AutoPolicy::begin_step(int32_t position) {
  position_ = position;
  if (from_ > 0) {
    inner_now_ = position >= from_;
  } else if (trial_ < kTrials) {
    inner_now_ = kTrialUsesInner[trial_++];
    measured_at_ = position;
  } else {
    if (trial_ == kTrials) {
      const double full = std::min(trial_ms_[0], trial_ms_[1]);
      use_inner_ = std::min(trial_ms_[2], trial_ms_[3]) < kPays * full;
      ++trial_;
    }
    inner_now_ = use_inner_;
    if (position >= 2 * measured_at_) {  // the next steps measure again
      trial_ = 0;
      trial_ms_ = {};
    }
  }
  ++steps_;
  inner_steps_ += inner_now_ ? 1 : 0;
}

void AutoPolicy::observe(const QueryRows& rows, const AttentionResult& result) {
  if (inner_now_) inner().observe(rows, result);
  const bool measuring = from_ == 0 && trial_ >= 1 && trial_ <= kTrials;
  if (measuring) trial_ms_[trial_ - 1] += result.select_ms + result.attend_ms;
}

void AutoPolicy::truncate(int32_t length) {
  inner().truncate(length);
  if (length >= measured_at_) return;
  trial_ = 0;
  trial_ms_ = {};
}

PolicyStats AutoPolicy::stats() const {
  PolicyStats stats = inner().stats();
  if (steps_ > 0) {
    stats.emplace_back("auto_share",
                       static_cast<double>(inner_steps_) / static_cast<double>(steps_));
  }
  return stats;
}

void AutoPolicy::clear_stats() {
  steps_ = inner_steps_ = 0;
  inner().clear_stats();
}

}  // namespace reprise

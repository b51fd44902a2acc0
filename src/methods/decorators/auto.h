// Full attention where the policy on its right does not pay, that policy where it does: decided by
// the time both take for this sequence on this machine.
#pragma once

#include <array>

#include "attention/policy.h"
#include "reprise/options.h"

namespace reprise {

struct AutoOptions {
  uint32_t from = 0;
};

template <class Visitor>
void visit_options(AutoOptions& o, Visitor&& visit) {
  visit(OptionSpec{"from",
                   "context from which the other policy is used; 0 measures which is faster, which "
                   "can differ between runs",
                   "tokens", 0, 1 << 30},
        o.from);
}

/// The first decoded tokens are computed in turn with both, and again whenever the context has
/// doubled; in between the faster one is used. Nothing is evicted, so that full attention stays
/// possible.
class AutoPolicy : public PolicyDecorator {
 public:
  AutoPolicy(const AutoOptions& options, const ModelConfig& config, std::unique_ptr<Policy> inner);

  std::unique_ptr<Policy> fork() const override { return std::make_unique<AutoPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  bool observes(uint32_t) const override { return true; }
  void observe(const QueryRows& rows, const AttentionResult& result) override;
  void after_step(SequenceKv&) override {}
  bool unbounded() const override { return false; }
  void truncate(int32_t length) override;
  PolicyStats stats() const override;
  void clear_stats() override;

 private:
  void begin_step(int32_t position);

  int32_t from_;
  int32_t position_ = -1;     // of the current step's row
  int32_t measured_at_ = -1;  // context of the last measurement
  size_t trial_ = 0;          // of the running measurement
  bool use_inner_ = false;    // what the measurement chose
  bool inner_now_ = false;    // what this step uses
  std::array<double, 4> trial_ms_{};
  uint64_t steps_ = 0, inner_steps_ = 0;
};

}  // namespace reprise

// The fastest of several policies, full attention among them: decided by the time each takes for
// this sequence on this machine.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/policy.h"
#include "reprise/error.h"
#include "reprise/options.h"

namespace reprise {

struct AutoOptions {
  std::string among = "small";
  uint32_t from = 0;
};

template <class Visitor>
void visit_options(AutoOptions& o, Visitor&& visit) {
  visit(OptionSpec{"among",
                   "policies to choose from beside full, separated by '/'; small: quest, sparq and "
                   "mac, whose indexes are small, as far as the device has them"},
        o.among);
  visit(OptionSpec{"from",
                   "context from which the first of them is used; 0 measures which is fastest, "
                   "which can differ between runs",
                   "tokens", 0, 1 << 30},
        o.from);
}

/// The first decoded tokens are computed in turn with every candidate, and again whenever the
/// context has doubled; in between the fastest is used, full attention unless another one saves a
/// tenth. All read prompts with full attention and nothing is evicted, so that each stays possible.
class AutoPolicy : public Policy {
 public:
  struct Candidate {
    std::string name;
    std::unique_ptr<Policy> policy;
    std::unique_ptr<Policy> fresh;  // without what it built from keys
  };

  /// inner: the only candidate, or null for those of options.among. kUnknownPolicy,
  /// kInvalidArgument, or kUnsupported where one cannot take turns with the others.
  static Result<std::unique_ptr<Policy>> create(const AutoOptions& options,
                                                const ModelConfig& config,
                                                std::unique_ptr<Policy> inner);
  /// named: none of the candidates can be left out.
  AutoPolicy(int32_t from, bool named, std::vector<Candidate> candidates);
  AutoPolicy(const AutoPolicy& other);

  std::unique_ptr<Policy> fork() const override { return std::make_unique<AutoPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  bool observes(uint32_t, kernels::Phase) const override { return true; }
  void observe(const QueryRows& rows, const AttentionResult& result) override;
  std::vector<const Policy*> acting() const override;
  void restrict_to(const std::function<bool(const Policy&)>& runs) override;
  DeviceStep begin_device_step(int32_t position) override;
  void step_took(int32_t position, double ms) override;
  void truncate(int32_t length) override;
  bool rebuilds() const override;
  /// What candidates save, by their names: that of one which the device of the file had left out is
  /// dropped. Which is the fastest is measured anew.
  std::string save_state() const override;
  Status restore_state(std::string_view state, int32_t length) override;
  std::string prefill_key() const override { return std::string(kDensePrefill); }
  int32_t observed_prompt_rows(int32_t prompt_end, int32_t kept) const override;
  PolicyStats stats() const override;
  void clear_stats() override;
  uint64_t state_bytes() const override;
  void leave_alone(uint32_t layer) override;

 private:
  static constexpr size_t kTrials = 2;  // a first one also builds indexes and warms caches

  struct TrialStep {
    int32_t position;
    size_t trial;
  };

  bool measures() const { return from_ == 0 && trial_ >= 1 && trial_ <= trial_ms_.size(); }
  void begin_step(int32_t position);
  void choose();
  void start_over();

  int32_t from_;
  bool named_;
  std::vector<Candidate> candidates_;  // the first is full attention
  int32_t position_ = -1;              // of the current step's row
  int32_t measured_at_ = -1;           // context of the last measurement
  size_t trial_ = 0;                   // steps of the running measurement
  size_t chosen_ = 0;                  // by the last measurement
  size_t now_ = 0;                     // what this step uses
  std::deque<TrialStep> under_way_;    // on a device, whose times come later
  std::vector<double> trial_ms_;       // [candidates * kTrials]
  std::vector<uint64_t> steps_;        // [candidates] of this answer
};

}  // namespace reprise

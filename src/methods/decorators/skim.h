// Reads prompts through a window, and answers as the policy on its right does: what a long context
// costs an answer can be measured without the hours that reading it takes.
#pragma once

#include "attention/policy.h"
#include "reprise/options.h"

namespace reprise {

struct SkimOptions {
  uint32_t sink = 64;
  uint32_t window = 1024;
};

template <class Visitor>
void visit_options(SkimOptions& o, Visitor&& visit) {
  visit(OptionSpec{"sink", "first keys that rows of prompts read", "tokens", 0, 1 << 20}, o.sink);
  visit(OptionSpec{"window", "recent keys that rows of prompts read", "tokens", 1, 1 << 20},
        o.window);
}

class SkimPolicy : public PolicyDecorator {
 public:
  SkimPolicy(const SkimOptions& options, const ModelConfig& config, std::unique_ptr<Policy> inner);

  std::unique_ptr<Policy> fork() const override { return std::make_unique<SkimPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  std::string prefill_key() const override;
  /// Until sinks and window are full everything is read, in one piece.
  int32_t next_cut(int32_t position) const override;

 private:
  SkimOptions options_;
};

}  // namespace reprise

// Random pages: the control that every selecting policy must beat at equal bytes.
#pragma once

#include "attention/policy.h"
#include "reprise/options.h"

namespace reprise {

struct RandomOptions {
  uint32_t budget = 1024;
  uint32_t seed = 1;
};

template <class Visitor>
void visit_options(RandomOptions& o, Visitor&& visit) {
  visit(OptionSpec{"budget", "keys read per KV head, rounded down to pages of 16", "tokens", 16,
                   1 << 24},
        o.budget);
  visit(OptionSpec{"seed", "of the choice, which also depends on layer, KV head and position"},
        o.seed);
}

/// Reads the last page and random ones, chosen anew at every step.
class RandomPolicy : public Policy {
 public:
  RandomPolicy(const RandomOptions& options, const ModelConfig& config)
      : budget_pages_(options.budget / kPageTokens),
        seed_(options.seed),
        n_kv_head_(config.n_kv_head) {}

  std::unique_ptr<Policy> fork() const override { return std::make_unique<RandomPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  int32_t reads_from(const QueryRows& rows) const override { return rows.end(); }
  std::string prefill_key() const override { return std::string(kDensePrefill); }

 private:
  size_t budget_pages_;
  uint32_t seed_, n_kv_head_;
  std::vector<float> scores_;  // [pages]
  std::vector<int32_t> pages_;
};

}  // namespace reprise

// Full attention: the exact baseline.
#pragma once

#include "attention/policy.h"
#include "reprise/options.h"

namespace reprise {

struct FullOptions {
  std::string keys = "rotated";
};

template <class Visitor>
void visit_options(FullOptions& o, Visitor&& visit) {
  visit(OptionSpec{"keys", "how keys are stored; position-free ones are rotated when read", "", 0,
                   0, "rotated|position-free"},
        o.keys);
}

class FullPolicy : public Policy {
 public:
  FullPolicy(const FullOptions& options, const ModelConfig&) : options_(options) {}

  std::unique_ptr<Policy> fork() const override { return std::make_unique<FullPolicy>(*this); }
  void select(const QueryRows&, Selection& selection) override { selection.all = true; }
  int32_t reads_from(const QueryRows& rows) const override { return rows.end(); }
  bool reads_everything() const override { return !position_free(); }
  bool position_free() const override { return options_.keys == "position-free"; }
  std::string prefill_key() const override { return "full:" + options_.keys; }

 private:
  FullOptions options_;
};

}  // namespace reprise

// Quest (Tang et al. 2024): pages ranked by an upper bound of q.k from their keys' channel-wise
// minima and maxima; the best pages and the last one are read. Nothing is evicted.
//
// Decided apart from the paper: pages are ranked per KV head by the largest bound of its query
// heads, and layers are left dense with `dense+quest`, not by a fixed number of skipped ones.
#pragma once

#include "attention/policy.h"
#include "methods/page_bounds.h"
#include "reprise/options.h"

namespace reprise {

struct QuestOptions {
  uint32_t budget = 1024;
  uint32_t sink = 0;
};

template <class Visitor>
void visit_options(QuestOptions& o, Visitor&& visit) {
  visit(OptionSpec{"budget", "keys read per KV head, rounded down to pages of 16", "tokens", 16,
                   1 << 24},
        o.budget);
  visit(OptionSpec{"sink", "first keys that are always read, part of the budget", "tokens", 0,
                   1 << 20},
        o.sink);
}

class QuestPolicy : public Policy {
 public:
  QuestPolicy(const QuestOptions& options, const ModelConfig& config);

  const QuestOptions& options() const { return options_; }

  std::unique_ptr<Policy> fork() const override { return std::make_unique<QuestPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  int32_t reads_from(const QueryRows& rows) const override { return bounds_.end(rows.layer); }
  bool predict(const QueryRows& rows, Selection& selection) override;
  void truncate(int32_t length) override { bounds_.truncate(length); }
  std::string prefill_key() const override { return std::string(kDensePrefill); }
  uint64_t state_bytes() const override { return bounds_.bytes(); }

 private:
  void choose(const QueryRows& rows, Selection& selection);

  QuestOptions options_;
  size_t budget_pages_, sink_pages_;
  PageBounds bounds_;
  std::vector<float> scores_;                // [n_kv_head, pages]
  std::vector<std::vector<int32_t>> pages_;  // [n_kv_head] that are read
};

}  // namespace reprise

// Keeps some layers dense: the policy on its right is asked only for the others.
#pragma once

#include "attention/policy.h"
#include "reprise/options.h"

namespace reprise {

struct DenseOptions {
  uint32_t first = 2;
  uint32_t last = 0;
};

template <class Visitor>
void visit_options(DenseOptions& o, Visitor&& visit) {
  visit(OptionSpec{"first", "first layers that read every key", "layers", 0, 1024}, o.first);
  visit(OptionSpec{"last", "last layers that read every key", "layers", 0, 1024}, o.last);
}

class DensePolicy : public PolicyDecorator {
 public:
  DensePolicy(const DenseOptions& options, const ModelConfig& config,
              std::unique_ptr<Policy> inner);

  std::unique_ptr<Policy> fork() const override { return std::make_unique<DensePolicy>(*this); }
  int32_t shared_length(int32_t prompt_end) const override {
    return inner().shared_length(prompt_end);
  }
  void select(const QueryRows& rows, Selection& selection) override;
  int32_t reads_from(const QueryRows& rows) const override {
    return dense_[rows.layer] ? rows.end() : inner().reads_from(rows);
  }
  bool predict(const QueryRows& rows, Selection& selection) override {
    return dense_[rows.layer] || inner().predict(rows, selection);
  }
  bool observes(uint32_t layer, kernels::Phase phase) const override {
    return !dense_[layer] && PolicyDecorator::observes(layer, phase);
  }
  std::string prefill_key() const override;

  const std::vector<bool>& dense() const { return dense_; }

 private:
  std::vector<bool> dense_;  // [n_layer]
  std::string name_;
};

}  // namespace reprise

// Measures what the policy on its right misses: full attention is computed beside it at every
// decoded token, for figures only. Slow by design; the answer is the inner policy's.
#pragma once

#include <array>

#include "attention/policy.h"
#include "reprise/options.h"

namespace reprise {

struct ProbeOptions {
  bool layers = false;
  bool ages = false;
};

template <class Visitor>
void visit_options(ProbeOptions& o, Visitor&& visit) {
  visit(OptionSpec{"layers", "figures of every layer too"}, o.layers);
  visit(OptionSpec{"ages", "figures of an answer's tokens from 0, 64, 256, 1024 and 4096 on too"},
        o.ages);
}

/// Figures, as means over query heads, layers and decoded tokens:
///   recovery      share of full attention's softmax mass that the read keys hold
///   topk_recall   that share, of the mass that the best keys of the same number hold
///   output_error  |out - full| / |full|
///   error_correlation  of its logarithm with that of what the policy supposes (supposed_errors())
///   error_ratio        geometric mean of the former over the latter, where something is supposed
/// Keys that the inner policy would evict stay, because full attention needs them.
class ProbePolicy : public PolicyDecorator {
 public:
  ProbePolicy(const ProbeOptions& options, const ModelConfig& config,
              std::unique_ptr<Policy> inner);

  std::unique_ptr<Policy> fork() const override { return std::make_unique<ProbePolicy>(*this); }
  int32_t shared_length(int32_t prompt_end) const override {
    return inner().shared_length(prompt_end);
  }
  void select(const QueryRows& rows, Selection& selection) override;
  bool observes(uint32_t, kernels::Phase) const override { return true; }
  void observe(const QueryRows& rows, const AttentionResult& result) override;
  void after_step(SequenceKv&) override {}
  bool unbounded() const override { return false; }
  PolicyStats stats() const override;
  void clear_stats() override;

 private:
  /// Logarithms of errors, x supposed and y true.
  struct Errors {
    double count = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;

    void add(double supposed, double error);
    void add(const Errors& other);
    double correlation() const;
  };
  struct Sums {
    double recovery = 0, topk_recall = 0, output_error = 0;
    uint64_t heads = 0;
    Errors errors;

    void add(const Sums& other);
  };
  static constexpr std::array<int32_t, 5> kAges = {0, 64, 256, 1024, 4096};
  /// Figures of the query heads of one KV head.
  Sums measure(const QueryRows& rows, const AttentionResult& result, size_t kv_head) const;

  const ModelConfig* config_;
  bool by_layer_, by_age_;
  bool exact_ = true;                // the last select() asked for every key
  std::vector<uint64_t> keys_read_;  // [n_head] of the last select()
  std::vector<Sums> layers_;         // [n_layer]
  std::array<Sums, kAges.size()> ages_;
  int32_t first_end_ = 0;  // of the answer's first token; 0 = there is none yet
};

}  // namespace reprise

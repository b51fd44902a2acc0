// PQCache (Zhang et al. 2025): keys are product-quantised when the prompt has been read; table
// lookups rank them, and the best are read exactly, with sinks and a recent window. Nothing is
// evicted.
//
// Decided apart from the paper: everything stays in memory, so there is no block cache; the number
// of k-means iterations is fixed (the authors' depends on measured latency) and training uses at
// most 4096 keys of the prompt; query heads of a KV head are joined by the sum of their softmax
// weights over the candidates.
#pragma once

#include "attention/policy.h"
#include "methods/key_codes.h"
#include "methods/token_ranking.h"
#include "reprise/options.h"

namespace reprise {

struct PqCacheOptions {
  uint32_t budget = 1024;
  uint32_t sink = 32;
  float local = 0.5f;
  uint32_t parts = 2;
  uint32_t bits = 6;
  uint32_t iterations = 10;
  uint32_t seed = 1;
};

template <class Visitor>
void visit_options(PqCacheOptions& o, Visitor&& visit) {
  visit(OptionSpec{"budget", "keys read per KV head", "tokens", 1, 1 << 24}, o.budget);
  visit(OptionSpec{"sink", "first keys that are always read, part of the budget", "tokens", 0,
                   1 << 20},
        o.sink);
  visit(OptionSpec{"local", "share of the budget that goes to the most recent keys", "", 0, 1},
        o.local);
  visit(OptionSpec{"parts", "codes per key and KV head, one for each part of its dimensions", "", 1,
                   64},
        o.parts);
  visit(OptionSpec{"bits", "of a code", "bits", 1, 8}, o.bits);
  visit(OptionSpec{"iterations", "of k-means", "", 0, 1000}, o.iterations);
  visit(OptionSpec{"seed", "of k-means"}, o.seed);
}

class PqCachePolicy : public Policy {
 public:
  PqCachePolicy(const PqCacheOptions& options, const ModelConfig& config);

  std::unique_ptr<Policy> fork() const override { return std::make_unique<PqCachePolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  void truncate(int32_t length) override { codes_.truncate(length); }
  std::string prefill_key() const override { return std::string(kDensePrefill); }
  uint64_t state_bytes() const override { return codes_.bytes(); }

 private:
  void score_keys(const QueryRows& rows, int32_t end);

  const ModelConfig* config_;
  int32_t budget_, sink_, local_;
  KeyCodes codes_;
  TokenRanking ranking_;
  std::vector<float> q_;  // [n_head, head_dim] scaled
};

}  // namespace reprise

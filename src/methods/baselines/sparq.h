// SparQ (Ribar et al. 2024, algorithm 1): logits approximated from the channels where the query is
// largest rank the keys; the value mean stands for the keys that are not read. Nothing is evicted.
//
// Decided apart from the paper: channels are taken as rotary pairs, which lie in one line of the K
// cache for 16 tokens, so no second copy of K is kept; they are chosen per KV head by the sum of
// |q| over its query heads; and query heads are joined after their softmax (score=raw adds the
// logits as the authors' code does).
#pragma once

#include "attention/policy.h"
#include "methods/token_ranking.h"
#include "methods/value_sums.h"
#include "reprise/options.h"

namespace reprise {

struct SparqOptions {
  uint32_t budget = 1024;
  uint32_t channels = 0;
  uint32_t local = 64;
  bool mean = true;
  std::string score = "softmax";
};

template <class Visitor>
void visit_options(SparqOptions& o, Visitor&& visit) {
  visit(OptionSpec{"budget", "keys read per KV head", "tokens", 1, 1 << 24}, o.budget);
  visit(OptionSpec{"channels",
                   "dimensions of a head that rank the keys, in pairs; 0 = a quarter of them", "",
                   0, 1024},
        o.channels);
  visit(OptionSpec{"local", "recent keys that are always read, part of the budget", "tokens", 1,
                   1 << 24},
        o.local);
  visit(OptionSpec{"mean", "the mean of all values stands for the keys that are not read"}, o.mean);
  visit(OptionSpec{"score", "how query heads of a KV head are joined", "", 0, 0, "softmax|raw"},
        o.score);
}

class SparqPolicy : public Policy {
 public:
  SparqPolicy(const SparqOptions& options, const ModelConfig& config);

  std::unique_ptr<Policy> fork() const override { return std::make_unique<SparqPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  void truncate(int32_t length) override { values_.truncate(length); }
  std::string prefill_key() const override { return std::string(kDensePrefill); }
  uint64_t state_bytes() const override { return values_.bytes(); }

 private:
  void choose_channels(const float* q, size_t kv_head);
  void score_keys(const QueryRows& rows);
  uint64_t lines_read(const kernels::KvLayout& layout, size_t kv_head) const;
  void use_mean(const QueryRows& rows, int32_t recent, MeanValue& mean);

  const ModelConfig* config_;
  size_t group_;  // query heads of a KV head
  int32_t budget_, local_;
  size_t pairs_;  // of channels
  bool mean_;
  HeadJoin join_;
  ValueSums values_;
  TokenRanking ranking_;
  std::vector<float> q_;                       // [n_head, head_dim] with its temperature
  std::vector<std::vector<uint16_t>> chosen_;  // [n_kv_head][pairs]
};

}  // namespace reprise

// MagicPIG (Chen et al. 2025): keys are sampled by hash collisions with the query, and every
// sampled key's logit is corrected by the probability that it was sampled, so that the softmax's
// numerator and denominator are estimated without bias.
//
// Decided apart from the paper: keys are hashed when the prompt has been read, and the window of
// keys that are always read slides on over the last of them; what is generated is always read too.
// Nothing bounds the number of sampled keys: it is what the query's angles make it.
//
// Memory: two bytes per table and key, 300 bytes per key and KV head with 150 tables: more than the
// keys and values themselves for heads of 64 dims in bf16 (256 bytes).
#pragma once

#include <memory>

#include "attention/policy.h"
#include "kernels/attention.h"
#include "methods/sign_hash.h"
#include "reprise/options.h"

namespace reprise {

struct MagicPigOptions {
  uint32_t tables = 150;
  uint32_t bits = 10;
  uint32_t min_collisions = 2;
  uint32_t sink = 4;
  uint32_t local = 64;
  uint32_t seed = 1;
};

template <class Visitor>
void visit_options(MagicPigOptions& o, Visitor&& visit) {
  visit(OptionSpec{"tables", "hash tables", "", 1, 4096}, o.tables);
  visit(OptionSpec{"bits", "hyperplanes per table", "bits", 0, 14}, o.bits);
  visit(OptionSpec{"min-collisions", "tables in which a key must meet the query to be read", "", 1,
                   64},
        o.min_collisions);
  visit(OptionSpec{"sink", "first keys that are always read", "tokens", 0, 1 << 20}, o.sink);
  visit(OptionSpec{"local", "recent keys that are always read", "tokens", 1, 1 << 24}, o.local);
  visit(OptionSpec{"seed", "of the hyperplanes"}, o.seed);
}

class MagicPigPolicy : public Policy {
 public:
  MagicPigPolicy(const MagicPigOptions& options, const ModelConfig& config);

  std::unique_ptr<Policy> fork() const override { return std::make_unique<MagicPigPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  void truncate(int32_t length) override;
  std::string prefill_key() const override { return std::string(kDensePrefill); }
  uint64_t state_bytes() const override;

 private:
  struct Layer {
    int32_t hashed_end = 0;         // keys [sink, hashed_end) are in the tables
    std::vector<SignTables> heads;  // [n_kv_head]
  };
  struct Sample {  // of one query head
    std::vector<int32_t> keys;
    std::vector<float> bias;
    uint64_t bytes = 0;  // of table lines and K tiles read for it, whatever other heads read
    std::vector<uint16_t> counts;
    std::vector<float> dots, logits;
    std::vector<uint16_t> buckets;
    std::vector<kernels::PageSpan> pages;
  };

  void hash_prompt(const QueryRows& rows, int32_t end);
  void draw(const QueryRows& rows, size_t head, int32_t end, Sample& sample) const;
  void correct(const QueryRows& rows, size_t head, Sample& sample) const;

  const ModelConfig* config_;
  int32_t sink_, local_;
  size_t min_collisions_;
  std::shared_ptr<const SignPlanes> planes_;
  std::vector<Layer> layers_;
  std::vector<Sample> samples_;  // [n_head] scratch
};

/// P(at least `least` of `tables` tables collide), each with probability p.
double collision_probability(double p, size_t tables, size_t least);

}  // namespace reprise

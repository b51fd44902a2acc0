// H2O (Zhang et al. 2023): keeps the recent tokens and those that received most attention.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "methods/baselines/evicting.h"
#include "reprise/options.h"

namespace reprise {

struct H2oOptions {
  uint32_t budget = 1024;
  float recent = 0.5f;
  uint32_t observe = 256;
  std::string normalise = "none";
};

template <class Visitor>
void visit_options(H2oOptions& o, Visitor&& visit) {
  visit(OptionSpec{"budget", "tokens kept per KV head, the current one included", "tokens", 1,
                   1 << 24},
        o.budget);
  visit(OptionSpec{"recent", "share of the budget that is a recent window", "", 0, 1}, o.recent);
  visit(OptionSpec{"observe", "last prompt rows whose attention counts; 0 = all", "tokens", 0,
                   1 << 24},
        o.observe);
  visit(OptionSpec{"normalise", "count: divide by the rows that could see a token", "", 0, 0,
                   "none|count"},
        o.normalise);
}

/// Prompts are read densely; their end and every decode step leave exactly budget tokens per KV
/// head. A decode step scores what it has and the new token, adds the probabilities to the sums
/// (over the query heads of a KV head), and drops the smallest sum outside the recent window before
/// it reads; of equal sums the younger token goes. Dropped tokens never come back. This is the
/// evicting method only: H2O+ of the AttentionPredictor paper, which keeps the whole cache and
/// selects from it, is not here.
class H2oPolicy : public EvictingPolicy {
 public:
  H2oPolicy(const H2oOptions& options, const ModelConfig& config);

  const H2oOptions& options() const { return options_; }
  int32_t recent() const { return recent_; }

  std::unique_ptr<Policy> fork() const override { return std::make_unique<H2oPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  void truncate(int32_t length) override;
  int32_t observed_prompt_rows(int32_t, int32_t) const override { return observe_; }
  uint64_t state_bytes() const override;

  /// Sums of probabilities of the kept tokens of a KV head, numbered as in KeptKeys.
  const std::vector<float>& sums(uint32_t layer, size_t kv_head) const {
    return layers_[layer].heads[kv_head].sums;
  }
  /// Positions of its tokens in the side pages.
  const std::vector<int32_t>& heavy(uint32_t layer, size_t kv_head) const {
    return layers_[layer].heads[kv_head].heavy;
  }

 private:
  struct Head {
    std::vector<float> sums;     // [side + sequence tokens]
    std::vector<int32_t> heavy;  // [side] positions
  };
  struct Layer {
    std::vector<Head> heads;         // [n_kv_head]
    std::vector<KeyRange> observed;  // positions of the rows that were summed
    int32_t end = 0;                 // tokens seen
    bool reading = false;            // in the middle of a prompt
  };
  struct Candidate {
    float score;
    int32_t position, key;
  };
  struct Change {                   // of one head
    std::vector<int32_t> admitted;  // keys of sequence tokens that become heavy, ascending
    std::vector<int32_t> slots;     // their slots
  };

  /// Adds the attention of rows from position first on to the sums.
  void sum_votes(const QueryRows& rows, int32_t first);
  void shrink(const QueryRows& rows);
  Change choose(const Layer& layer, const Kept& kept, size_t head, size_t candidates) const;
  void apply(const QueryRows& rows, size_t head, const Change& change, size_t candidates);
  float score(const Layer& layer, float sum, int32_t position) const;

  H2oOptions options_;
  int32_t heavy_, recent_, observe_;  // heavy_ + recent_ = budget
  bool per_row_;
  std::vector<Layer> layers_;
};

}  // namespace reprise

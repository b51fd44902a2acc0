// What policies that give up tokens for good have in common.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "attention/policy.h"
#include "methods/baselines/kept_scores.h"
#include "methods/baselines/side_kv.h"

namespace reprise {

/// Reads tokens [0, side) of the side pages and tokens [begin, length) of the sequence, in every
/// layer whose select() is called. Prompts are read densely until something has been given up.
class EvictingPolicy : public Policy {
 public:
  EvictingPolicy(const ModelConfig& config, size_t side_capacity)
      : shape_(config), kept_(config.n_layer), side_(side_capacity) {}

  void after_step(SequenceKv& kv) override;
  bool can_resume(const SequenceKv& kv, int32_t length) const override;
  void truncate(int32_t length) override;
  bool evicts() const override { return true; }
  bool rebuilds() const override { return false; }
  /// Empty once a prompt was read beside tokens that had been given up: its KV is not dense.
  std::string prefill_key() const override;
  PolicyStats stats() const override { return {{"fallback", static_cast<double>(fallbacks_)}}; }
  void clear_stats() override { fallbacks_ = 0; }

 protected:
  struct Kept {
    int32_t side = 0;   // tokens per KV head in side pages
    int32_t begin = 0;  // first token that is read from the sequence
    int32_t until = 0;  // this state rests on tokens before this one
  };

  /// Fills selection with what is kept now.
  void read_kept(const QueryRows& rows, Selection& selection);
  KeptScores scores(const QueryRows& rows) const;
  KeptKeys keys(uint32_t layer, int32_t end) const {
    return {layer, kept_[layer].side, kept_[layer].begin, end};
  }

  AttentionShape shape_;
  std::vector<Kept> kept_;  // [n_layer]
  SideKv side_;
  uint64_t fallbacks_ = 0;  // times that there was no memory to compress a layer

 private:
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
  int32_t sparse_from_ = kNever;  // first prefilled token whose KV is not that of dense reading
};

}  // namespace reprise

// What policies that give up tokens for good have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attention/policy.h"
#include "kv/side_kv.h"
#include "methods/baselines/kept_scores.h"

namespace reprise {

/// What is kept of a layer.
struct Kept {
  int32_t side = 0;   // tokens per KV head in side pages
  int32_t begin = 0;  // first token that is read from the sequence
  int32_t until = 0;  // this state rests on tokens before this one
};

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

  // Where a device computes, select() is not called: it chooses and copies, and says what it keeps.
  const Kept& kept(uint32_t layer) const { return kept_[layer]; }
  void keep(uint32_t layer, const Kept& kept) { kept_[layer] = kept; }
  bool leaves_alone(uint32_t layer) const { return is_left_alone(layer); }
  SideKv& side() { return side_; }
  void count_fallback() { ++fallbacks_; }
  /// A prompt is read from this token on beside what is kept.
  void read_beside(int32_t first) { sparse_from_ = std::min(sparse_from_, first); }
  /// What a device knows of the sequence; copies share it.
  std::shared_ptr<void>& device_state() { return device_state_; }

 protected:
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
  std::shared_ptr<void> device_state_;
  int32_t sparse_from_ = kNever;  // first prefilled token whose KV is not that of dense reading
};

}  // namespace reprise

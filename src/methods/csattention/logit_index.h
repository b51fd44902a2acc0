// Indexes that estimate logits: how estimates become the keys that a KV head reads.
#pragma once

#include "methods/csattention/key_index.h"
#include "methods/token_ranking.h"

namespace reprise {

/// Query heads of a KV head share the units with the largest sums of estimated softmax weights,
/// where a page has the weight of its best key. The logits of sinks and recent keys, which are read
/// anyway, are exact: a head that attends to them has little say in what else is read.
class LogitIndex : public KeyIndex {
 public:
  LogitIndex(const ModelConfig& config, int32_t unit);

  uint64_t find(const QueryRows& rows, KeyRange candidates, size_t k, KeyPicks& picks) final;
  /// As if no head attended to sinks and recent keys.
  bool guess(const QueryRows& rows, KeyRange candidates, size_t k, KeyPicks& picks) final;
  int32_t unit() const final { return unit_; }
  HeadSplit split() const final { return HeadSplit::kPerKvHead; }

 protected:
  const ModelConfig& config() const { return *config_; }
  /// Fetches what estimates of keys from `begin` on read first.
  virtual void fetch(uint32_t /*layer*/, size_t /*kv_head*/, int32_t /*begin*/) const {}
  /// What the estimates of a KV head share, made before them once for every search. Called for many
  /// KV heads at once. q: [group, head_dim], scaled.
  virtual void prepare(uint32_t /*layer*/, size_t /*kv_head*/, const float* /*q*/) {}
  /// logits [group, keys], rows stride apart, of the query heads of a KV head. q: [group,
  /// head_dim], scaled. Called for many KV heads and ranges of keys at once. Returns the bytes
  /// read.
  virtual uint64_t estimate(uint32_t layer, size_t kv_head, const float* q, KeyRange keys,
                            float* logits, size_t stride) const = 0;
  /// The largest logits of whole pages, [group, keys / 16] likewise.
  virtual uint64_t estimate_pages(uint32_t layer, size_t kv_head, const float* q, KeyRange keys,
                                  float* tops, size_t stride) const;
  /// Bytes that a search reads whatever the number of keys.
  virtual uint64_t fixed_bytes() const = 0;

 private:
  struct Search {  // units: candidates; others: slot of the first key that is none
    KeyRange candidates;
    size_t units, others, k;
    bool reads_others;
  };
  /// [group, head_dim] scaled.
  const float* queries(size_t kv_head) const {
    return &q_[kv_head * (config_->n_head / config_->n_kv_head) * config_->head_dim];
  }
  uint64_t score_and_rank(const QueryRows& rows, const Search& search, KeyPicks& picks);
  uint64_t score_candidates(const QueryRows& rows, size_t head, KeyRange keys, size_t first);
  void score_others(const QueryRows& rows, size_t head, const Search& search);

  const ModelConfig* config_;
  int32_t unit_;
  TokenRanking ranking_;
  std::vector<float> q_;  // [n_head, head_dim] scaled
};

}  // namespace reprise

// CSAttention's default index: product-quantised keys under the queries' metric.
#pragma once

#include "methods/csattention/logit_index.h"
#include "methods/csattention/query_moments.h"
#include "methods/key_codes.h"

namespace reprise {

/// Keys are quantised so that the mean squared error of logits is least for the prompt's queries
/// (QueryMoments): what clusters of queries are for in the paper, at a byte per part.
class CodeIndex : public LogitIndex {
 public:
  CodeIndex(const KeyCodesOptions& options, const ModelConfig& config, int32_t unit = 1);

  std::unique_ptr<KeyIndex> clone() const override { return std::make_unique<CodeIndex>(*this); }
  void take_queries(const QueryRows& rows, const QueryWindow& window) override;
  void build(const QueryRows& rows, KeyRange keys) override;
  int32_t built_end(uint32_t layer) const override { return codes_.trained_end(layer); }
  int32_t held_end(uint32_t layer) const override { return codes_.coded(layer); }
  float drift(const QueryRows& rows, KeyRange keys) const override;
  void forget_queries(uint32_t layer) override { moments_.clear(layer); }
  void extend(const QueryRows& rows, int32_t end) override { codes_.encode(rows, end); }
  void truncate(int32_t length) override;
  void save(StateWriter& out) const override { codes_.save(out); }
  void load(StateReader& in, int32_t length) override { codes_.load(in, length); }
  uint64_t bytes() const override { return codes_.bytes() + moments_.bytes(); }

  KeyCodes* key_codes() override { return &codes_; }
  const KeyCodes& codes() const { return codes_; }

 private:
  void fetch(uint32_t layer, size_t kv_head, int32_t begin) const override {
    codes_.fetch(layer, kv_head, begin);
  }
  void prepare(uint32_t layer, size_t kv_head, const float* q) override {
    codes_.prepare_lookup(layer, kv_head, q, lookups_[kv_head]);
  }
  uint64_t estimate(uint32_t layer, size_t kv_head, const float* q, KeyRange keys, float* logits,
                    size_t stride) const override;
  uint64_t estimate_pages(uint32_t layer, size_t kv_head, const float* q, KeyRange keys,
                          float* tops, size_t stride) const override;
  uint64_t fixed_bytes() const override { return codes_.codebook_bytes(); }

  KeyCodes codes_;
  QueryMoments moments_;
  std::vector<KeyCodes::Lookup> lookups_;  // [n_kv_head] of the search that goes on
};

}  // namespace reprise

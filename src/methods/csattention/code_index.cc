#include "methods/csattention/code_index.h"

#include "methods/csattention/code_drift.h"

namespace reprise {
namespace {

constexpr int32_t kLeastRows = 32;  // whose queries tell something

}  // namespace

CodeIndex::CodeIndex(const KeyCodesOptions& options, const ModelConfig& config, int32_t unit)
    : LogitIndex(config, unit),
      codes_(options, config),
      moments_(config, split_pairs(config.head_dim, options.parts)),
      lookups_(config.n_kv_head) {}

void CodeIndex::take_queries(const QueryRows& rows, const QueryWindow& window) {
  moments_.add(rows, window);
}

void CodeIndex::build(const QueryRows& rows, KeyRange keys) {
  codes_.train(rows, keys.begin, keys.end, moments_.metrics(rows.layer));
  moments_.clear(rows.layer);
}

float CodeIndex::drift(const QueryRows& rows, KeyRange keys) const {
  if (moments_.rows(rows.layer) < kLeastRows) return 1.0f;
  return code_drift(rows, codes_, keys, moments_.metrics(rows.layer),
                    moments_.energies(rows.layer));
}

uint64_t CodeIndex::estimate(uint32_t layer, size_t kv_head, const float*, KeyRange keys,
                             float* logits, size_t stride) const {
  return codes_.logits(layer, kv_head, lookups_[kv_head], keys.begin, keys.end, logits, stride);
}

uint64_t CodeIndex::estimate_pages(uint32_t layer, size_t kv_head, const float* q, KeyRange keys,
                                   float* tops, size_t stride) const {
  if (!codes_.packed()) return LogitIndex::estimate_pages(layer, kv_head, q, keys, tops, stride);
  return codes_.page_tops(layer, kv_head, lookups_[kv_head], keys.begin, keys.end, tops, stride);
}

void CodeIndex::truncate(int32_t length) {
  codes_.truncate(length);
  moments_.truncate(length);
}

}  // namespace reprise

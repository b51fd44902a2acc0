#include "methods/csattention/code_index.h"

namespace reprise {

CodeIndex::CodeIndex(const KeyCodesOptions& options, const ModelConfig& config, int32_t unit)
    : LogitIndex(config, unit),
      codes_(options, config),
      moments_(config, split_pairs(config.head_dim, options.parts)) {}

// Prompts shape the metric; decoded rows only until there is an index.
void CodeIndex::take_queries(const QueryRows& rows, const QueryWindow& window) {
  if (rows.phase == kernels::Phase::kDecode && codes_.trained(rows.layer)) return;
  moments_.add(rows, window.first);
}

void CodeIndex::build(const QueryRows& rows, KeyRange keys) {
  codes_.train(rows, keys.begin, keys.end, moments_.metrics(rows.layer));
}

void CodeIndex::estimate(uint32_t layer, size_t kv_head, const float* q, KeyRange keys,
                         float* logits, size_t stride) const {
  codes_.logits(layer, kv_head, q, keys.begin, keys.end, logits, stride);
}

void CodeIndex::truncate(int32_t length) {
  codes_.truncate(length);
  moments_.truncate(length);
}

}  // namespace reprise

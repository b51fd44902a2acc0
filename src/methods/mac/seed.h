// Entries of prompt rows: attention over the keys that their entries cover.
#pragma once

#include <span>

#include "attention/policy.h"
#include "methods/mac/ring.h"
#include "model/config.h"

namespace reprise {

/// Where results of rows go: [rows, n_head, head_dim], [rows, n_head]; means: of the first shape,
/// see mean_keys(), or null.
struct PrefixResult {
  float *out, *lse, *means;
};

/// Attention of the rows of a prefill step over the keys [begin, cut.at(position)) of each; begin:
/// [rows, n_head]. Rows that begin at cut.sink with all heads of a KV head are computed apart from
/// those that begin later, so that these read few keys. Uses rows.pool.
void prefix_attention(const QueryRows& rows, const ModelConfig& config, const MacCut& cut,
                      std::span<const int32_t> begin, const PrefixResult& result);

}  // namespace reprise

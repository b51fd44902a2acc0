// Entries of prompt rows: attention over the keys that their entries cover.
#pragma once

#include "attention/policy.h"
#include "methods/mac/ring.h"
#include "model/config.h"

namespace reprise {

/// Attention of rows [first, rows) of a prefill step over the keys [cut.sink, cut.at(position)) of
/// each; result: [those rows, n_head, head_dim]; means: of the same shape, see mean_keys(), or
/// null. The prompt's own attention is left as it is, so that its KV can be shared: this reads the
/// keys of those rows once more. Uses rows.pool.
void prefix_attention(const QueryRows& rows, size_t first, const ModelConfig& config,
                      const MacCut& cut, Partial& result, std::vector<float>* means);

}  // namespace reprise

// Whether codes still fit the queries and keys of now.
#pragma once

#include <span>

#include "methods/key_codes.h"

namespace reprise {

/// Codes are fitted to some keys under the second moments of some queries. Both change as an answer
/// grows: rotation alone turns them, and other text has others. With E the mean of e e^T over the
/// errors e of coded keys, the mean squared error of logits is the trace of M E for queries of
/// moments M. Returned is, summed over parts and KV heads, that of the queries of now over all
/// coded keys by what it would be over the keys that the codes were fitted to, were the queries
/// those that the codes were weighted with, as long in each part as those of now. E is taken from
/// evenly spread coded keys of the rows' layer. keys: from the first one that codes were fitted to.
/// now: of recent queries (see QueryMoments::metrics); energies: [n_kv_head parts] their sums of
/// squared lengths.
float code_drift(const QueryRows& rows, const KeyCodes& codes, KeyRange keys,
                 const PartMetrics& now, std::span<const float> energies);

}  // namespace reprise

// The exact scan: which keys have the largest products with each query row.
#pragma once

#include <vector>

#include "attention/policy.h"
#include "kernels/key_top_k.h"
#include "model/config.h"

namespace reprise {

/// The k keys of `keys` with the largest products with each query head of the given rows:
/// [rows, n_head, k], see kernels::key_top_k. which: indices into rows.rows. angles: [pairs][2]
/// queries are multiplied with, as by a rotation; empty: they are taken as they are. The result
/// does not depend on the number of threads.
std::vector<kernels::RankedKey> best_keys(const QueryRows& rows, std::span<const size_t> which,
                                          KeyRange keys, size_t k, std::span<const float> angles,
                                          const ModelConfig& config);

}  // namespace reprise

// Which rows of the chunks to compute again: what the methods score them by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/plan.h"
#include "base/thread_pool.h"
#include "kv/sequence_kv.h"

namespace reprise {

/// Mean over a window of count values centred at each, zeros beyond the ends.
std::vector<float> pooled(std::span<const float> scores, size_t count);

/// CacheBlend: squared distance of the values of rows to those in the pages. v: [rows, n_kv_head,
/// head_dim]; returns [rows].
std::vector<float> value_deviation(uint32_t layer, std::span<const Row> rows, const float* v,
                                   const SequenceKv& kv, ThreadPool& pool);

/// The candidates' scores among those of rows at positions, which they are some of.
std::vector<float> scores_of(std::span<const int32_t> candidates,
                             std::span<const int32_t> positions, std::span<const float> scores);

/// Has candidates at some of their positions come before all others.
void put_first(std::span<const int32_t> positions, std::span<const int32_t> candidates,
               std::span<float> scores);

/// The positions of the largest floor(ratio * candidates) scores, ascending; of equal ones the
/// first. ratio counts to six decimals.
std::vector<int32_t> best_positions(std::span<const float> scores,
                                    std::span<const int32_t> candidates, float ratio);

}  // namespace reprise

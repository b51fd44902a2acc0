// The k largest scores: what selecting policies rank keys and pages by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/largest.h"

namespace reprise {

/// Indices of the min(k, scores) largest scores, ascending. Ties go to the lower index; NaN counts
/// as -inf. O(scores).
inline void top_k(std::span<const float> scores, size_t k, std::vector<int32_t>& indices) {
  indices.resize(std::min(k, scores.size()));
  kernels::largest(scores.data(), scores.size(), indices.size(), indices.data());
}

}  // namespace reprise

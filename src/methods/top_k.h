// The k largest scores: what selecting policies rank keys and pages by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace reprise {

/// Indices of the min(k, scores) largest scores, ascending. Ties go to the lower index; NaN counts
/// as -inf. O(scores).
void top_k(std::span<const float> scores, size_t k, std::vector<int32_t>& indices);

}  // namespace reprise

// Which of many scores are the largest: what selecting policies rank keys and pages by.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::kernels {

/// indices: [k] those of the k <= n largest scores, ascending. Ties go to the lower index; NaN is
/// below everything. O(n).
void largest(const float* scores, size_t n, size_t k, int32_t* indices);

}  // namespace reprise::kernels

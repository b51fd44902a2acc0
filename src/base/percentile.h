// Percentiles of measured times.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace reprise {

/// The value at share p (0 to 1) of the sorted values, the nearest one; 0 when there are none.
inline double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0.0;
  const auto rank = std::lround(p * static_cast<double>(values.size() - 1));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace reprise

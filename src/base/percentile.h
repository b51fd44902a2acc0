// Percentiles of measured times.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace reprise {

/// The value at share p (0 to 1) of the sorted values, between two neighbours in proportion: at 0.5
/// of an even number of them the mean of the two in the middle. 0 when there are none.
inline double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0.0;
  const double rank = p * static_cast<double>(values.size() - 1), below = std::floor(rank);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), at, values.end());
  if (rank == below) return *at;
  return *at + (rank - below) * (*std::min_element(at + 1, values.end()) - *at);
}

}  // namespace reprise

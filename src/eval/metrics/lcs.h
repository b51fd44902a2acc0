// Length of the longest common subsequence.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace reprise::eval {

/// Of two random-access sequences; O(|a| |b|) time, O(|b|) memory.
template <class Sequence>
size_t lcs_length(const Sequence& a, const Sequence& b) {
  std::vector<size_t> row(b.size() + 1, 0);  // [j] lengths for a's prefix so far and b's first j
  for (const auto& item : a) {
    size_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = item == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace reprise::eval

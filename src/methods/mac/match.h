// The first step of MAC-Attention: which stored query is nearest.
#pragma once

#include <vector>

#include "methods/mac/ring.h"

namespace reprise {

/// Which entries may be reused.
struct MacLimits {
  int32_t first = 0, last = 0;  // positions
  int32_t oldest_anchor = 0;    // positions of computed results
  float distance2 = 0;          // squared distance, exclusive
  bool results = true;          // only entries that have one
};

struct MacMatch {
  int32_t position = -1;  // -1: no entry is near enough
  float distance = 0;
  float moved = 0;  // see MacPolicy::moved()

  bool found() const { return position >= 0; }
};

/// Buffers of one thread's search.
struct MacSearch {
  std::vector<float> q;       // [queries, head_dim] rounded to bf16, as stored queries are
  std::vector<float> dots;    // [queries, window] products with them, then squared distances
  std::vector<float> stored;  // [head_dim]
  std::vector<size_t> near;   // slots
  std::vector<kernels::PageSpan> tiles;
};

/// For each of several queries, stride floats apart, with limits of their own: the nearest entry of
/// a head that may be reused, the newest of equally near ones. q: [limits][head_dim] before
/// rotation, found: [limits]. Entries are ranked by differences in float: the products that are
/// computed for all of them only decide which ones cannot be nearest. Matches nothing when a query
/// is not finite.
void nearest_entries(const MacRing& ring, size_t head, const float* q, size_t stride,
                     std::span<const MacLimits> limits, MacSearch& search, MacMatch* found);

}  // namespace reprise

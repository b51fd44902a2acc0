// Selections of whole pages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "attention/selection.h"
#include "kv/page_pool.h"

namespace reprise {

/// Adds a list of the keys below end that lie in pages, which are ascending block numbers.
inline void add_pages(SelectionPart& part, std::span<const int32_t> pages, int32_t end) {
  constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
  const size_t first = part.ranges.size();
  for (const int32_t page : pages) {
    const KeyRange keys = {page * kTokens, std::min(end, (page + 1) * kTokens)};
    if (part.ranges.size() > first && part.ranges.back().end == keys.begin) {
      part.ranges.back().end = keys.end;
    } else {
      part.ranges.push_back(keys);
    }
  }
  part.offsets.push_back(static_cast<uint32_t>(part.ranges.size()));
}

}  // namespace reprise

// Selections of single keys, and the pages that hold a run of keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/policy.h"
#include "kernels/attention.h"

namespace reprise {

/// Appends keys [keys.begin, keys.end) to the list that begins at ranges[first].
inline void append_range(KeyRange keys, size_t first, std::vector<KeyRange>& ranges) {
  if (keys.begin >= keys.end) return;
  if (ranges.size() > first && ranges.back().end == keys.begin) {
    ranges.back().end = keys.end;
  } else {
    ranges.push_back(keys);
  }
}

/// Adds a list of keys: [0, sink), then runs of `unit` keys from offset + unit picks on, then
/// [recent.begin, recent.end). Everything ascends, picks included.
inline void add_keys(SelectionPart& part, int32_t sink, std::span<const int32_t> picks,
                     int32_t offset, KeyRange recent, int32_t unit = 1) {
  const size_t first = part.ranges.size();
  append_range({0, sink}, first, part.ranges);
  for (const int32_t pick : picks) {
    append_range({offset + unit * pick, offset + unit * (pick + 1)}, first, part.ranges);
  }
  append_range(recent, first, part.ranges);
  part.offsets.push_back(static_cast<uint32_t>(part.ranges.size()));
}

/// Pages of keys [begin, end) of a KV head, only those slots set; replaces pages.
inline void list_pages(const QueryRows& rows, size_t kv_head, int32_t begin, int32_t end,
                       std::vector<kernels::PageSpan>& pages) {
  constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
  const kernels::KvLayout& layout = rows.kv->pool().layout();
  pages.clear();
  for (int32_t block = begin / kTokens; block * kTokens < end; ++block) {
    const std::byte* page = rows.kv->page(rows.layer, static_cast<size_t>(block));
    const int32_t first = std::max(begin - block * kTokens, 0);
    const int32_t last = std::min(end - block * kTokens, kTokens);
    const auto slots = static_cast<uint16_t>((1u << last) - (1u << first));
    pages.push_back(
        {page + layout.k_offset(kv_head), page + layout.v_offset(kv_head), block * kTokens, slots});
  }
}

}  // namespace reprise

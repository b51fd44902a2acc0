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

/// The same of runs of `unit` keys from offset + unit picks on. Whether a run joins the one before
/// cannot be predicted, so there is no branch.
inline void append_picks(std::span<const int32_t> picks, int32_t offset, int32_t unit, size_t first,
                         std::vector<KeyRange>& ranges) {
  const size_t before = ranges.size();
  if (picks.empty()) return;
  append_range({offset + unit * picks[0], offset + unit * (picks[0] + 1)}, first, ranges);
  size_t last = ranges.size() - 1;  // range that was written last
  ranges.resize(before + picks.size() + 1);
  for (const int32_t pick : picks.subspan(1)) {
    const int32_t begin = offset + unit * pick;
    const bool joins = ranges[last].end == begin;
    last += !joins;
    ranges[last] = {joins ? ranges[last].begin : begin, begin + unit};
  }
  ranges.resize(last + 1);
}

/// Adds a list of keys: [0, sink), then runs of `unit` keys from offset + unit picks on, then
/// [recent.begin, recent.end). Everything ascends, picks included.
inline void add_keys(SelectionPart& part, int32_t sink, std::span<const int32_t> picks,
                     int32_t offset, KeyRange recent, int32_t unit = 1) {
  const size_t first = part.ranges.size();
  append_range({0, sink}, first, part.ranges);
  append_picks(picks, offset, unit, first, part.ranges);
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

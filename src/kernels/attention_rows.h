// Which keys rows of a call see.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace reprise::kernels {

/// Keys that a group of rows sees: somebody sees [first, last), everybody sees [all_first,
/// all_last).
struct RowWindow {
  int32_t first, last, all_first, all_last;
};

RowWindow row_window(const AttendArgs& args, size_t row, size_t rows);

static inline bool sees(const RowWindow& window, const PageSpan& page) {
  return page.index + page.end > window.first && page.index + page.begin < window.last;
}

// Whether some row of the group does not see some slot of the page.
static inline bool needs_mask(const RowWindow& window, const PageSpan& page) {
  return page.begin > 0 || page.end < kPageTokens || page.index < window.all_first ||
         page.index + static_cast<int32_t>(kPageTokens) > window.all_last;
}

// Bit t: the row sees slot t.
static inline uint32_t visible_slots(const AttendArgs& args, size_t row, const PageSpan& page) {
  int32_t begin = args.row_begin[row] - page.index, end = args.row_end[row] - page.index;
  if (begin < page.begin) begin = page.begin;
  if (end > page.end) end = page.end;
  return end > begin ? ((1u << end) - 1u) & ~((1u << begin) - 1u) : 0u;
}

}  // namespace reprise::kernels

// Which keys rows of a call see.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace reprise::kernels {

/// What rows sum up.
struct RowSums {
  size_t width;   // whole vectors
  float* values;  // [rows, width] weighted values, not normalised
  float* base;    // [rows] what logits are relative to
  float* totals;  // [rows, 16] weights summed lane by lane

  [[gnu::always_inline]] RowSums from(size_t row) const {
    return {width, values + row * width, base + row, totals + row * kPageTokens};
  }
};

/// Keys that a group of rows sees: somebody sees [first, last), everybody sees [all_first,
/// all_last).
struct RowWindow {
  int32_t first, last, all_first, all_last;
};

RowWindow row_window(const AttendArgs& args, size_t row, size_t rows);

static inline bool sees(const RowWindow& window, const PageSpan& page) {
  return page.slots != 0 && page.index + static_cast<int32_t>(kPageTokens) > window.first &&
         page.index < window.last;
}

// Whether some row of the group does not see some slot of the page, or sees it with a bias.
static inline bool needs_adjustment(const RowWindow& window, const PageSpan& page) {
  return page.slots != kAllSlots || page.bias != nullptr || page.index < window.all_first ||
         page.index + static_cast<int32_t>(kPageTokens) > window.all_last;
}

// Where the logits of a row and a page are given back.
static inline float* kept_logits(const AttendArgs& args, size_t row, const PageSpan& page) {
  return args.logits + row * args.logits_stride +
         static_cast<size_t>(&page - args.pages.data()) * kPageTokens;
}

// Bit t: the row sees slot t.
static inline uint32_t visible_slots(const AttendArgs& args, size_t row, const PageSpan& page) {
  int32_t begin = args.row_begin[row] - page.index, end = args.row_end[row] - page.index;
  constexpr auto kEnd = static_cast<int32_t>(kPageTokens);
  if (begin < 0) begin = 0;
  if (end > kEnd) end = kEnd;
  return end > begin ? page.slots & ((1u << end) - (1u << begin)) : 0u;
}

}  // namespace reprise::kernels

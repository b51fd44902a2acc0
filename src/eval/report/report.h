// The pages of `reprise compare` and `reprise report`.
#pragma once

#include "eval/compare.h"
#include "eval/report/page.h"
#include "eval/settings.h"

namespace reprise::eval {

/// Tables of differences, groups of equal bytes, plots of score against bytes.
Page comparison_page(const Comparison& comparison);

/// The same, with the runs themselves, curves by position, heat maps of needle grids, counters,
/// timings, failures and what the numbers do not show. comparison must be of these settings.
Page report_page(const Settings& settings, const Comparison& comparison);

}  // namespace reprise::eval

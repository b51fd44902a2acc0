// What `reprise bench --json` printed, for the reports: time of a step against context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/report/page.h"
#include "reprise/error.h"

namespace reprise::eval {

struct SpeedRow {
  std::string phase, policy;  // phase: decode or prefill
  uint64_t context = 0, batch = 0;
  double median_ms = 0, tok_s = 0, roof_pct = 0;
};

/// One file of bench.
struct SpeedRun {
  std::string model, device;
  std::vector<SpeedRow> rows;
};

/// kFileUnreadable; kBadJson names what is missing.
Result<SpeedRun> read_speed(const std::string& path);

/// A plot of every phase, one line per policy and batch, and the table behind it.
void add_speed(const SpeedRun& run, Page& page);

}  // namespace reprise::eval

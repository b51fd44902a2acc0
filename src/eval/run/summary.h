// Means and intervals of what a run file holds.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/runner.h"

namespace reprise::eval {

struct SummaryTask {
  std::string name, headline;
};

/// One row per task and run, task by task; runs without a sample of a task give none. Where no
/// sample has the headline, the first metric that they have takes its place.
Result<std::vector<EvalRow>> summarize_runs(const RunFile& file, std::span<const RunRecord> runs,
                                            std::span<const SummaryTask> tasks);

}  // namespace reprise::eval

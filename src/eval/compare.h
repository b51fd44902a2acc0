// Policies against a reference on the same samples: paired differences, verdicts, what they cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/settings.h"
#include "eval/stats.h"
#include "reprise/error.h"
#include "reprise/progress.h"

namespace reprise::eval {

struct CompareOptions {
  JoinOptions join = {};
  double margin = 0.01;      // loss that would not matter: of a score from 0 to 1, or in nats
  double floor = 0;          // difference that two runs of one policy may have
  bool all_metrics = false;  // else each task's headline, and nll
  bool equal_bytes = false;  // group settings by bytes per token
  double tolerance = 0.02;   // relative, of equal bytes
  uint64_t seed = 1234;      // of resampling
};

/// A paired difference, score minus reference's score; low and high are of its 95 % interval.
struct Difference {
  size_t n = 0;      // samples that both have
  size_t units = 0;  // nearly independent ones: samples, or blocks of their steps
  Interval value;
  double p = 1, p_holm = 1;
  Verdict verdict = Verdict::kInconclusive;
};

/// What one generated token costs; NaN where it was not counted. Means over samples.
struct Cost {
  double kv_bytes = std::numeric_limits<double>::quiet_NaN();     // of K and V read per token
  double index_bytes = std::numeric_limits<double>::quiet_NaN();  // read per token to choose keys
  double full_bytes = std::numeric_limits<double>::quiet_NaN();   // that full attention would read
  double state_bytes = std::numeric_limits<double>::quiet_NaN();  // held by the policy

  double bytes() const;  // K, V and index per token
  double reduction() const { return full_bytes / bytes(); }
};

/// One setting in one task by one metric.
struct Row {
  std::string policy, family;
  size_t n = 0, failed = 0, truncated = 0;
  Interval score;         // mean and its 95 % interval
  Difference difference;  // to the reference; of the reference itself: equal
  Cost cost;
  double recovery = std::numeric_limits<double>::quiet_NaN();  // share of attention mass kept
  std::vector<std::string> dominated_by;  // settings no worse in score and bytes, better in one
  bool pareto = false;                    // has bytes and is dominated by none
};

/// A family at a number of bytes: one setting, or two that bracket it.
struct EqualBytesRow {
  std::string family, setting;  // setting: which one, or "A .. B" when interpolated
  bool interpolated = false;
  double bytes = 0;
  double score = 0;
  Difference to_reference;
  std::optional<Difference> to_random;  // where random was run at these bytes and is not this row
};

struct EqualBytesGroup {
  std::string point;  // the setting whose bytes these are
  double bytes = 0;   // per token
  std::vector<EqualBytesRow> rows;
  std::vector<std::string> absent;  // families without a setting of this size
};

struct TaskComparison {
  std::string task, metric;
  bool lower_is_better = false;
  std::vector<Row> rows;
  std::vector<EqualBytesGroup> groups;  // with CompareOptions::equal_bytes
  std::vector<std::string> notes;
};

struct Comparison {
  std::string reference;
  CompareOptions options;
  std::vector<RunRecord> runs;
  std::vector<TaskComparison> tasks;
  std::vector<std::string> notes;
};

/// progress: stage "compare", in tasks and metrics. Error: kCancelled.
Result<Comparison> compare(const Settings& settings, const CompareOptions& options,
                           const ProgressFn& progress = {});

/// Every number of the comparison; NaN is null.
nlohmann::ordered_json comparison_json(const Comparison& comparison);

}  // namespace reprise::eval

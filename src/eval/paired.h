// The statistics of one metric on samples that two settings share.
#pragma once

#include <cstdint>
#include <limits>

#include "eval/compare.h"
#include "eval/settings.h"
#include "eval/stats.h"

namespace reprise::eval {

/// Tokens of a text that are drawn together: neighbours are not independent.
inline constexpr size_t kBlockTokens = 256;

/// values minus reference's at the positions that both have.
StepValues step_differences(const StepValues& values, const StepValues& reference);
/// Values at positions [begin, end) of all readings of each text that has any there.
Clusters steps_by_text(const StepValues& values, uint64_t begin = 0,
                       uint64_t end = std::numeric_limits<uint64_t>::max());

/// Mean and interval of a metric: by texts and their 256-token blocks where steps hold it, by
/// Wilson where it is a share of hits, else over samples, where readings of one text are drawn
/// together. Subtasks' means count alike where there are any. NaN without values.
Interval score_of(const Scored& scored, uint64_t seed);

/// scored minus reference, by sample, or step by step where both have steps. The p value is
/// McNemar's where both are hits and misses, else of a sign-flip test.
Difference paired_difference(const Scored& scored, const Scored& reference, bool lower_is_better,
                             const CompareOptions& options);

/// Takes the verdict from interval and adjusted p: what is not significant after Holm is neither
/// better nor worse.
void conclude(Difference& difference, bool lower_is_better, const CompareOptions& options);

}  // namespace reprise::eval

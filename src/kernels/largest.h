// Which of many scores are the largest: what selecting policies rank keys and pages by.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::kernels {

/// indices: [k] those of the k <= n largest scores, ascending. Ties go to the lower index; NaN is
/// below everything. O(n).
void largest(const float* scores, size_t n, size_t k, int32_t* indices);

inline constexpr size_t kMarks = 16;  // of one entry

/// The same as marks: bit i % 16 of marks[i / 16] says whether scores[i] is among them. The search
/// begins at `near`, which gets where it ended: with scores that have changed little it is short,
/// and its result is the same wherever it began.
void mark_largest(const float* scores, size_t n, size_t k, int32_t& near, uint16_t* marks);

/// What is marked of n blocks and their scores, one behind the other.
void take_marked(const uint16_t* marks, size_t n, const int32_t* blocks, const float* scores,
                 int32_t* marked_blocks, float* marked_scores);
/// scores[i] <- the next of `marked`, where i is marked.
void put_marked(const uint16_t* marks, size_t n, const float* marked, float* scores);

}  // namespace reprise::kernels

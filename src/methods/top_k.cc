#include "methods/top_k.h"

#include <algorithm>
#include <array>
#include <bit>

namespace reprise {
namespace {

/// Orders like (score, lower index first) as one integer; NaN is below everything.
uint64_t rank(float score, size_t index) {
  const auto bits = std::bit_cast<uint32_t>(score == 0.0f ? 0.0f : score);  // -0 equals 0
  uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (score != score) order = 0;
  return static_cast<uint64_t>(order) << 32 | (0xffffffffu - static_cast<uint32_t>(index));
}

constexpr int kBucketShift = 64 - 11;

/// Moves the k largest to the front, in any order. A histogram of sign, exponent and two bits of
/// mantissa leaves only one bucket to be partitioned.
void partition_largest(std::vector<uint64_t>& ranks, size_t k) {
  std::array<uint32_t, 1u << 11> counts{};
  for (const uint64_t value : ranks) ++counts[value >> kBucketShift];
  size_t bucket = counts.size(), above = 0;
  while (above + counts[--bucket] < k) above += counts[bucket];
  const auto middle = std::partition(
      ranks.begin(), ranks.end(), [&](uint64_t value) { return value >> kBucketShift > bucket; });
  const auto end = std::partition(middle, ranks.end(),
                                  [&](uint64_t value) { return value >> kBucketShift == bucket; });
  std::nth_element(middle, ranks.begin() + static_cast<std::ptrdiff_t>(k), end, std::greater<>());
}

}  // namespace

void top_k(std::span<const float> scores, size_t k, std::vector<int32_t>& indices) {
  k = std::min(k, scores.size());
  thread_local std::vector<uint64_t> ranks;
  ranks.resize(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) ranks[i] = rank(scores[i], i);
  if (k > 0 && k < ranks.size()) partition_largest(ranks, k);
  indices.resize(k);
  for (size_t i = 0; i < k; ++i) {
    indices[i] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(ranks[i]));
  }
  std::sort(indices.begin(), indices.end());
}

}  // namespace reprise

#include "fusion/row_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace reprise {
namespace {

constexpr size_t kTaskRows = 16;

// Larger scores come first; equal ones are equal. Integers are compared in a fraction of the time.
uint32_t rank_of(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // no negative zero
  const uint32_t ascending = bits >> 31 != 0 ? ~bits : bits | 1u << 31;
  return ~ascending;
}

}  // namespace

std::vector<float> pooled(std::span<const float> scores, size_t count) {
  if (count == 1) return {scores.begin(), scores.end()};
  const auto size = static_cast<std::ptrdiff_t>(scores.size());
  const auto before = static_cast<std::ptrdiff_t>((count - 1) / 2);
  const auto after = static_cast<std::ptrdiff_t>(count) - before;
  std::vector<float> out(scores.size());
  for (std::ptrdiff_t i = 0; i < size; ++i) {
    const auto first = scores.begin() + std::max<std::ptrdiff_t>(0, i - before);
    const auto last = scores.begin() + std::min(size, i + after);
    out[static_cast<size_t>(i)] = std::accumulate(first, last, 0.0f) / static_cast<float>(count);
  }
  return out;
}

std::vector<float> value_deviation(uint32_t layer, std::span<const Row> rows, const float* v,
                                   const SequenceKv& kv, ThreadPool& pool) {
  const kernels::KvLayout& layout = kv.pool().layout();
  const size_t head_dim = layout.head_dim;
  std::vector<float> out(rows.size());
  pool.run((rows.size() + kTaskRows - 1) / kTaskRows, [&](size_t task, int) {
    std::vector<float> stored(head_dim);
    const size_t end = std::min(rows.size(), (task + 1) * kTaskRows);
    for (size_t row = task * kTaskRows; row < end; ++row) {
      const auto position = static_cast<size_t>(rows[row].position);
      const std::byte* page = kv.page(layer, position / kPageTokens);
      for (uint32_t head = 0; head < layout.n_kv_head; ++head) {
        kernels::load_v(layout, page + layout.v_offset(head), position % kPageTokens,
                        stored.data());
        const float* fresh = v + (row * layout.n_kv_head + head) * head_dim;
        for (size_t d = 0; d < head_dim; ++d) {
          const float difference = fresh[d] - stored[d];
          out[row] += difference * difference;
        }
      }
    }
  });
  return out;
}

std::vector<float> scores_of(std::span<const int32_t> candidates,
                             std::span<const int32_t> positions, std::span<const float> scores) {
  std::vector<float> out;
  size_t row = 0;
  for (const int32_t candidate : candidates) {
    while (positions[row] < candidate) ++row;
    out.push_back(scores[row]);
  }
  return out;
}

void put_first(std::span<const int32_t> positions, std::span<const int32_t> candidates,
               std::span<float> scores) {
  size_t i = 0;
  for (const int32_t position : positions) {
    while (candidates[i] < position) ++i;
    scores[i] = std::numeric_limits<float>::infinity();
  }
}

std::vector<int32_t> best_positions(std::span<const float> scores,
                                    std::span<const int32_t> candidates, float ratio) {
  // What was typed: the nearest float may be just below it.
  const auto millionths = static_cast<size_t>(std::lround(static_cast<double>(ratio) * 1e6));
  const size_t wanted = millionths * candidates.size() / 1'000'000;
  if (wanted >= candidates.size()) return {candidates.begin(), candidates.end()};
  std::vector<uint32_t> ranks(candidates.size());
  std::transform(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(ranks.size()),
                 ranks.begin(), rank_of);
  std::vector<uint32_t> order = ranks;
  const auto first_left = order.begin() + static_cast<std::ptrdiff_t>(wanted);
  std::nth_element(order.begin(), first_left, order.end());
  const uint32_t last = *first_left;  // of which some are chosen, the first ones
  auto equal = std::count(order.begin(), first_left, last);
  std::vector<int32_t> chosen;
  chosen.reserve(wanted);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < last || (ranks[i] == last && equal-- > 0)) chosen.push_back(candidates[i]);
  }
  return chosen;
}

}  // namespace reprise

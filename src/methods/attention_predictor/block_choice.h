// Which blocks a step of a budget can choose from, and how many of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kv/page_pool.h"

namespace reprise {

/// Boundaries are those of blocks, so that a step never reads more than its budget: candidates are
/// whole blocks between the sinks and the window, which takes what is left of the block before it.
struct BlockBudget {
  int32_t budget = 1024, sink = 64, window = 64;  // tokens

  struct Choice {
    size_t first = 0, last = 0, count = 0;  // blocks [first, last), of which count are read
    size_t candidates() const { return last - first; }
  };
  /// Of a small budget half is left to be chosen.
  BlockBudget(uint32_t tokens, uint32_t sinks, uint32_t recent)
      : budget(static_cast<int32_t>(tokens)),
        sink(std::min(static_cast<int32_t>(sinks), budget / 4) / kTokens * kTokens),
        window(std::min(static_cast<int32_t>(recent), budget / 4)) {}

  /// For a row that sees keys [0, end).
  Choice choice(int32_t end) const {
    const int32_t recent = std::max(end - window, sink) / kTokens * kTokens;
    return {static_cast<size_t>(sink / kTokens), static_cast<size_t>(recent / kTokens),
            static_cast<size_t>(std::max(0, budget - sink - (end - recent)) / kTokens)};
  }

  friend bool operator==(const BlockBudget&, const BlockBudget&) = default;

  static constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
};

}  // namespace reprise

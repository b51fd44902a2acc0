// Sequences that decode together, and the times of steps that do nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "reprise/engine.h"

namespace reprise {

struct DecodedTogether {
  std::vector<Answer> answers;
  std::vector<double> step_ms;  ///< of steps that computed one token of every sequence
};

/// Tokens of an answer, at most: a sequence may be ahead of the others by a step for each of them.
inline uint32_t tokens_together(uint32_t steps, size_t sequences) {
  constexpr uint32_t kUntimed = 2;  // the first token, and that of the step that warms the caches
  return kUntimed + steps + static_cast<uint32_t>(sequences);
}

/// Forks of the sessions read one token more, which ends their prompts, and decode; then so many
/// steps are timed. Policies that look at the last rows of a prompt again read those in many steps,
/// and some sequences end before others: nothing is timed until every one has its first token, nor
/// the step after that, which warms the caches. progress is asked, with nothing to tell, before
/// every step that may read a prompt and every timed one: kCancelled.
Result<DecodedTogether> decode_together(Engine& engine,
                                        std::span<const std::unique_ptr<Session>> sessions,
                                        uint32_t steps, const ProgressFn& progress = {});

}  // namespace reprise

// Prompts of a wanted length in tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/task.h"
#include "eval/tasks/prose.h"

namespace reprise::eval {

/// The lengths that a task makes prompts of: those asked for, or the defaults that fit the context
/// (the context itself when none does). kContextExceeded when one that was asked for does not fit.
Result<std::vector<uint32_t>> prompt_lengths(const TaskContext& context,
                                             std::span<const uint32_t> defaults);

/// What varies to reach a length: sentences, words, needles.
struct UnitSearch {
  size_t limit = 0;  // tokens at most
  size_t floor = 0;  // tokens that are enough
  size_t least = 0, most = 0;
  size_t guess = 0;  // where to look first
};

struct Fitted {
  size_t units = 0, tokens = 0;
};

/// A number of units whose text has floor to limit tokens, found in few counts of the whole text:
/// interpolation, then bisection, so O(log most) whatever the text. text(n) must grow with n.
/// kInvalidArgument when even the least does not fit or the most does not suffice; the message
/// begins with name.
Result<Fitted> fit_units(std::string_view name, const UnitSearch& search,
                         const TokenCounter& count_tokens,
                         const std::function<std::string(size_t units)>& text);

/// Of a prompt and answer of length tokens, what is left for the prompt's text: UnitSearch::limit
/// and floor, so that the whole lies in [0.95, 1] x length. kInvalidArgument when nothing is left.
Result<UnitSearch> text_budget(std::string_view name, const TaskContext& context, uint32_t length,
                               uint32_t max_tokens);

}  // namespace reprise::eval

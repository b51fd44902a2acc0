// The tokens of a sample's prompt, shortened where the sample allows it.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/sample.h"
#include "reprise/engine.h"

namespace reprise::eval {

struct Prompt {
  std::vector<int32_t> tokens;
  bool truncated = false;
};

/// Prompt, answer prefix included. With Sample::cut_middle, of a prompt that leaves no room for the
/// answer in the context, the middle of the longest message is dropped: equally many of its first
/// and last tokens stay, and what the template adds is never touched. Without, it is left to the
/// policy whether such a prompt can be answered. Errors: those of Engine::chat_prompt;
/// kContextExceeded when dropping a whole message is not enough.
Result<Prompt> build_prompt(const Engine& engine, const Sample& sample);

/// What follows a prompt as its true answer.
std::vector<int32_t> gold_tokens(const Engine& engine, const Sample& sample);

}  // namespace reprise::eval

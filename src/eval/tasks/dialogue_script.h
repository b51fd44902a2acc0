// Conversations whose last question can only be answered from earlier turns.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tasks/rng.h"
#include "eval/tasks/words.h"
#include "reprise/request.h"

namespace reprise::eval {

/// fact: said once; edit: said, then changed; list: built over turns, one thing taken off again;
/// paste: inside a long text in turn 2.
inline constexpr std::array<std::string_view, 4> kDialogueKinds = {"fact", "edit", "list", "paste"};

/// A conversation without the running text that fills its turns.
struct Script {
  std::vector<Message> messages;  // user and assistant in turn; the last is the user's question
  std::vector<size_t> readings;   // messages that running text is added to
  std::string planted;            // a sentence that stands inside that text (paste)
  double planted_at = 0;          // share of the text's sentences before it
  std::string answer_prefix;
  std::vector<std::string> expected;  // what the answer must hold
  std::vector<std::string> wrong;     // old, removed or other things' values
  size_t turns = 0;                   // of the user
  size_t lag = 0;                     // turns from what is asked for to the question
};

/// kind is one of kDialogueKinds. 6 to 12 turns.
Script write_script(std::string_view kind, Rng& rng);

/// Sentences about nothing, for where there is no book to read from.
std::string small_talk(Rng& rng, size_t sentences);

}  // namespace reprise::eval

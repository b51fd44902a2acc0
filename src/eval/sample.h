// One question to the model and how its answer is judged: what every task is made of.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reprise/request.h"

namespace reprise::eval {

/// Named numbers in [0, 1] unless the name says otherwise; the first one is the headline.
using Scores = std::vector<std::pair<std::string, double>>;
/// Coordinates by which reports group samples: {"length", 4096}, {"depth", 0.5}.
using Axes = std::vector<std::pair<std::string, double>>;

struct Sample {
  std::string id;                 // unique in its task, the same in every run with the same seed
  std::vector<Message> messages;  // a conversation that ends with the user's turn
  bool plain = false;             // messages[0].content is the text to go on from, without template
  std::string answer_prefix;      // given to the model as the beginning of its answer
  bool cut_middle = false;        // a prompt that is too long loses its middle (else: an error)
  uint32_t max_tokens = 32;
  std::vector<std::string> stop;
  std::vector<std::string> references;
  std::string gold;  // its mean NLL as the answer is measured too; empty: not measured
  Axes axes;
  std::function<Scores(std::string_view answer)> score;
};

/// A text that is read token by token while every distribution is looked at (ppl, fidelity).
struct Document {
  std::string id;
  std::string text;
};

}  // namespace reprise::eval

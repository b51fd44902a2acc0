// Running text as material: sentences, slices, templates.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reprise::eval {

using TokenCounter = std::function<size_t(std::string_view)>;

/// The text on one line: every run of white space is one space, none at the ends.
std::string one_line(std::string_view text);

/// The template with every {name} that is given replaced, in one pass: what a value holds is never
/// replaced again.
std::string fill(std::string_view form,
                 std::initializer_list<std::pair<std::string_view, std::string_view>> values);

std::string join(const std::vector<std::string>& parts, std::string_view between);

/// Sentences of a text that is read in a circle, each counted in tokens once, when first needed.
class Haystack {
 public:
  /// The text is put on one line. Ends of sentences are found by punctuation; pieces without any
  /// are cut between words.
  Haystack(std::string_view text, TokenCounter count_tokens);

  size_t size() const { return ends_.size(); }
  /// Sentence index % size(), without space around it.
  std::string_view sentence(size_t index) const;
  /// Its tokens with the space before it.
  size_t tokens(size_t index) const;

 private:
  std::string text_;
  std::vector<size_t> ends_;  // offset after each sentence
  TokenCounter count_tokens_;
  mutable std::vector<size_t> tokens_;  // 0 = not counted yet
};

}  // namespace reprise::eval

#include "eval/metrics/qa_f1.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "eval/metrics/words.h"
#include "text/jinja/unicode.h"

namespace reprise::eval {
namespace {

bool is_ascii_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

// The regular expression \b(a|an|the)\b, each match replaced by a space: a whole run of word
// characters, which need not be a whole word between white space.
std::string without_articles(std::string_view text) {
  std::string out;
  size_t start = 0;  // of the run of word characters that ends at `at`
  const auto take = [&](size_t end) {
    const std::string_view run = text.substr(start, end - start);
    out += run == "a" || run == "an" || run == "the" ? " " : run;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (jinja::is_identifier(jinja::next_character(text, at))) continue;
    take(here);
    out += text.substr(here, at - here);
    start = at;
  }
  take(text.size());
  return out;
}

}  // namespace

std::vector<std::string> qa_tokens(std::string_view text) {
  std::string plain = jinja::to_lower(text);
  plain.erase(std::remove_if(plain.begin(), plain.end(), is_ascii_punctuation), plain.end());
  const std::string kept = without_articles(plain);
  const auto words = split_words(kept);
  return {words.begin(), words.end()};
}

double qa_f1(std::string_view prediction, std::string_view reference) {
  std::vector<std::string> predicted = qa_tokens(prediction);
  std::vector<std::string> expected = qa_tokens(reference);
  std::sort(predicted.begin(), predicted.end());
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> shared;
  std::set_intersection(predicted.begin(), predicted.end(), expected.begin(), expected.end(),
                        std::back_inserter(shared));
  if (shared.empty()) return 0.0;
  const auto same = static_cast<double>(shared.size());
  const double precision = same / static_cast<double>(predicted.size());
  const double recall = same / static_cast<double>(expected.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace reprise::eval

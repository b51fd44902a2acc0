#include "eval/metrics/words.h"

#include <algorithm>

#include "text/jinja/unicode.h"

namespace reprise::eval {
namespace {

// The longest runs of characters of one kind.
template <class Belongs>
std::vector<std::string_view> runs_of(std::string_view text, Belongs belongs) {
  std::vector<std::string_view> runs;
  size_t start = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const bool now = belongs(jinja::next_character(text, at));
    if (now && !inside) start = here;
    if (!now && inside) runs.push_back(text.substr(start, here - start));
    inside = now;
  }
  if (inside) runs.push_back(text.substr(start));
  return runs;
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view text) {
  return runs_of(text, [](char32_t c) { return !jinja::is_space(c); });
}

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (size_t found; (found = text.find(separator)) != text.npos;) {
    pieces.push_back(text.substr(0, found));
    text.remove_prefix(found + 1);
  }
  pieces.push_back(text);
  return pieces;
}

std::string_view stripped(std::string_view text) {
  return jinja::strip(text, nullptr, jinja::Side::kBoth);
}

std::vector<std::string_view> digit_runs(std::string_view text) {
  return runs_of(text, jinja::is_decimal);
}

std::vector<std::string_view> lines_after_newlines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return split_at(text, '\n');
}

}  // namespace reprise::eval

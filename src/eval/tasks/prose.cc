#include "eval/tasks/prose.h"

#include <algorithm>
#include <array>

namespace reprise::eval {
namespace {

constexpr size_t kLongestSentence = 800;  // bytes; longer ones are cut between words

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

// True when the word before a full stop is a title or an initial, so that no sentence ends there.
bool is_abbreviation(std::string_view before) {
  constexpr std::array<std::string_view, 9> kTitles = {"Mr", "Mrs", "Ms",   "Dr", "St",
                                                       "Jr", "vs",  "Prof", "No"};
  const size_t space = before.find_last_of(" (");
  const std::string_view word = space == std::string_view::npos ? before : before.substr(space + 1);
  return (word.size() == 1 && is_upper(word[0])) ||
         std::find(kTitles.begin(), kTitles.end(), word) != kTitles.end();
}

// True when the space at `at` stands between two sentences.
bool ends_sentence(std::string_view text, size_t begin, size_t at) {
  size_t last = at;
  while (last > begin &&
         std::string_view("\"')]_").find(text[last - 1]) != std::string_view::npos) {
    --last;
  }
  if (last == begin) return false;
  const char mark = text[last - 1];
  if (mark == '!' || mark == '?') return true;
  return mark == '.' && !is_abbreviation(text.substr(begin, last - 1 - begin));
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_space(text[i])) {
      line += text[i];
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  if (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::string fill(std::string_view form,
                 std::initializer_list<std::pair<std::string_view, std::string_view>> values) {
  std::string out;
  while (!form.empty()) {
    const size_t brace = std::min(form.find('{'), form.size());
    out += form.substr(0, brace);
    form.remove_prefix(brace);
    const auto* found = std::find_if(values.begin(), values.end(), [&](const auto& value) {
      return form.size() > value.first.size() + 1 && form.substr(1).starts_with(value.first) &&
             form[value.first.size() + 1] == '}';
    });
    if (found != values.end()) {
      out += found->second;
      form.remove_prefix(found->first.size() + 2);
    } else if (!form.empty()) {
      out += form.front();
      form.remove_prefix(1);
    }
  }
  return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view between) {
  std::string out;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) out += between;
    out += part;
  }
  return out;
}

Haystack::Haystack(std::string_view text, TokenCounter count_tokens)
    : text_(one_line(text)), count_tokens_(std::move(count_tokens)) {
  size_t begin = 0;
  for (size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] != ' ') continue;
    if (i - begin >= kLongestSentence || ends_sentence(text_, begin, i)) {
      ends_.push_back(i);
      begin = i + 1;
    }
  }
  if (begin < text_.size()) ends_.push_back(text_.size());
  tokens_.assign(ends_.size(), 0);
}

std::string_view Haystack::sentence(size_t index) const {
  index %= ends_.size();
  const size_t begin = index == 0 ? 0 : ends_[index - 1] + 1;
  return std::string_view(text_).substr(begin, ends_[index] - begin);
}

size_t Haystack::tokens(size_t index) const {
  size_t& known = tokens_[index % ends_.size()];
  if (known == 0) {
    known = std::max<size_t>(1, count_tokens_(" " + std::string(sentence(index))));
  }
  return known;
}

}  // namespace reprise::eval

#include "eval/metrics/matching.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "eval/metrics/words.h"
#include "text/jinja/unicode.h"

namespace reprise::eval {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::ptrdiff_t references_in(std::string_view prediction, std::span<const std::string> references) {
  const std::string text = jinja::to_lower(ruler_cleaned(prediction));
  return std::count_if(references.begin(), references.end(), [&](const std::string& reference) {
    return contains(text, jinja::to_lower(reference));
  });
}

// Lower case, white space as one space, no thousands separators.
std::string normalized(std::string_view text) {
  std::string plain;
  for (const std::string_view word : split_words(text)) {
    if (!plain.empty()) plain += ' ';
    for (size_t i = 0; i < word.size(); ++i) {
      const bool separator = word[i] == ',' && i > 0 && is_digit(word[i - 1]) &&
                             i + 1 < word.size() && is_digit(word[i + 1]);
      if (!separator) plain += word[i];
    }
  }
  return jinja::to_lower(plain);
}

}  // namespace

double classification(std::string_view prediction, std::string_view reference,
                      std::span<const std::string> classes, bool quirk) {
  std::vector<std::string_view> found;
  for (const std::string& name : classes) {
    if (contains(prediction, name)) found.push_back(name);
  }
  const auto is_part = [&](std::string_view name) {
    return name != reference && contains(reference, name);
  };
  if (quirk) {
    for (size_t i = 0; i < found.size(); ++i) {
      if (is_part(found[i])) found.erase(std::find(found.begin(), found.end(), found[i]));
    }
  } else {
    std::erase_if(found, is_part);
  }
  if (std::find(found.begin(), found.end(), reference) == found.end()) return 0.0;
  return 1.0 / static_cast<double>(found.size());
}

double count_score(std::string_view prediction, std::string_view reference) {
  const auto numbers = digit_runs(prediction);
  if (numbers.empty()) return 0.0;
  const auto right = std::count(numbers.begin(), numbers.end(), reference);
  return static_cast<double>(right) / static_cast<double>(numbers.size());
}

double retrieval(std::string_view prediction, std::string_view reference) {
  constexpr std::string_view kLabel = "Paragraph ";
  for (size_t at = 0; (at = reference.find(kLabel, at)) != reference.npos;) {
    at += kLabel.size();
    const auto runs = digit_runs(reference.substr(at));
    if (!runs.empty() && runs[0].data() == reference.data() + at) {
      return count_score(prediction, runs[0]);
    }
  }
  return 0.0;
}

std::string ruler_cleaned(std::string_view prediction) {
  std::string text(stripped(prediction));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, '\n');
  return std::string(stripped(text));
}

double ruler_all(std::string_view prediction, std::span<const std::string> references) {
  if (references.empty()) return 0.0;
  return static_cast<double>(references_in(prediction, references)) /
         static_cast<double>(references.size());
}

double ruler_part(std::string_view prediction, std::span<const std::string> references) {
  return references_in(prediction, references) > 0 ? 1.0 : 0.0;
}

bool needle_hit(std::string_view prediction, std::string_view value) {
  const std::string wanted = normalized(value);
  return !wanted.empty() && contains(normalized(prediction), wanted);
}

}  // namespace reprise::eval

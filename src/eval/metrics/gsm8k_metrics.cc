#include "eval/metrics/gsm8k_metrics.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

namespace reprise::eval {
namespace {

constexpr std::string_view kMinus = "\xE2\x88\x92";  // U+2212

struct Number {
  size_t begin = 0, end = 0;  // of its digits, commas and point
  std::string value;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
bool is_blank(char c) { return c == ' ' || c == '\t'; }

bool digit_at(std::string_view text, size_t at) { return at < text.size() && is_digit(text[at]); }

size_t digits_end(std::string_view text, size_t at) {
  while (digit_at(text, at)) ++at;
  return at;
}

// End of the digits that start at begin, with groups of three behind commas.
size_t whole_end(std::string_view text, size_t begin) {
  size_t end = digits_end(text, begin);
  if (end - begin > 3) return end;
  while (end < text.size() && text[end] == ',' && digits_end(text, end + 1) == end + 4) end += 4;
  return end;
}

// Whether the text up to end finishes with a minus that is a sign.
bool negative_before(std::string_view text, size_t end) {
  std::string_view before = text.substr(0, end);
  const auto drop = [&](std::string_view tail) {
    const bool found = before.ends_with(tail);
    if (found) before.remove_suffix(tail.size());
    return found;
  };
  drop("$");
  if (!drop("-") && !drop(kMinus)) return false;
  drop("$");
  if (before.empty()) return true;
  return !is_digit(before.back()) && !is_letter(before.back()) && before.back() != ')';
}

// Whether the point before the digits at begin starts a number (".5") rather than ends a word.
bool leading_point(std::string_view text, size_t begin) {
  if (begin == 0 || text[begin - 1] != '.') return false;
  return begin == 1 ||
         std::string_view(" \t\n$-+(").find(text[begin - 2]) != std::string_view::npos;
}

std::string canonical(bool negative, std::string_view whole, std::string_view decimals) {
  std::string digits;
  std::copy_if(whole.begin(), whole.end(), std::back_inserter(digits), is_digit);
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  decimals = decimals.substr(0, decimals.find_last_not_of('0') + 1);
  if (digits.empty()) digits = "0";
  if (!decimals.empty()) digits.append(".").append(decimals);
  return negative && digits != "0" ? "-" + digits : digits;
}

std::optional<Number> next_number(std::string_view text, size_t from) {
  while (from < text.size() && !is_digit(text[from])) ++from;
  if (from == text.size()) return std::nullopt;
  Number number;
  if (leading_point(text, from)) {
    number = {from - 1, digits_end(text, from), {}};
    number.value =
        canonical(negative_before(text, from - 1), "", text.substr(from, number.end - from));
    return number;
  }
  const size_t whole = whole_end(text, from);
  const bool point = whole < text.size() && text[whole] == '.' && digit_at(text, whole + 1);
  const size_t decimals = point ? whole + 1 : whole;
  number = {from, digits_end(text, decimals), {}};
  number.value = canonical(negative_before(text, from), text.substr(from, whole - from),
                           text.substr(decimals, number.end - decimals));
  return number;
}

size_t skip_blanks(std::string_view text, size_t at) {
  while (at < text.size() && is_blank(text[at])) ++at;
  return at;
}

bool slash_and_digit(std::string_view text, size_t at) {
  at = skip_blanks(text, at);
  return at < text.size() && text[at] == '/' && digit_at(text, skip_blanks(text, at + 1));
}

// "3" and "1" of "3 1/2" have a fraction behind them, its "2" has one in front.
bool in_fraction(std::string_view text, const Number& number) {
  if (slash_and_digit(text, number.end)) return true;
  const size_t next = skip_blanks(text, number.end);
  if (next > number.end && digit_at(text, next) && slash_and_digit(text, digits_end(text, next))) {
    return true;
  }
  std::string_view before = text.substr(0, number.begin);
  const auto drop_blanks = [&] {
    while (!before.empty() && is_blank(before.back())) before.remove_suffix(1);
  };
  drop_blanks();
  if (!before.ends_with('/')) return false;
  before.remove_suffix(1);
  drop_blanks();
  return !before.empty() && is_digit(before.back());
}

ExtractedNumber extracted(std::string_view text, const Number& number) {
  return {number.value, in_fraction(text, number)};
}

}  // namespace

ExtractedNumber strict_number(std::string_view answer) {
  constexpr std::string_view kPhrase = "The answer is";
  for (size_t at = 0; (at = answer.find(kPhrase, at)) != answer.npos;) {
    at += kPhrase.size();
    const auto number = next_number(answer, at);
    if (!number) break;
    const std::string_view between = answer.substr(at, number->begin - at);
    if (std::none_of(between.begin(), between.end(), is_letter)) return extracted(answer, *number);
  }
  return {};
}

ExtractedNumber flexible_number(std::string_view answer) {
  std::optional<Number> last;
  for (auto number = next_number(answer, 0); number; number = next_number(answer, last->end)) {
    last = std::move(number);
  }
  return last ? extracted(answer, *last) : ExtractedNumber{};
}

std::string gold_number(std::string_view answer) {
  constexpr std::string_view kMark = "####";
  const size_t mark = answer.rfind(kMark);
  if (mark != answer.npos) {
    if (const auto number = next_number(answer, mark + kMark.size())) return number->value;
  }
  return flexible_number(answer).value;
}

Scores gsm8k_scores(std::string_view prediction, std::string_view gold_answer) {
  const std::string gold = gold_number(gold_answer);
  const ExtractedNumber strict = strict_number(prediction);
  const ExtractedNumber flexible = flexible_number(prediction);
  const auto right = [&](const ExtractedNumber& number) {
    return !number.value.empty() && number.value == gold ? 1.0 : 0.0;
  };
  return {{"strict", right(strict)},
          {"flexible", right(flexible)},
          {"no_match", strict.value.empty() ? 1.0 : 0.0},
          {"fraction", strict.fraction || flexible.fraction ? 1.0 : 0.0}};
}

}  // namespace reprise::eval

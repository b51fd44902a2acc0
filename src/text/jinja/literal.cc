// String literals: Python's escapes.
#include "base/try.h"
#include "text/jinja/lexer.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 32);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
}

// Reads up to count digits of base at position at, which moves behind them.
char32_t read_digits(std::string_view text, size_t& at, size_t count, int base) {
  char32_t value = 0;
  for (; count > 0 && at < text.size() && digit_value(text[at]) < base; --count, ++at) {
    value = value * static_cast<char32_t>(base) + static_cast<char32_t>(digit_value(text[at]));
  }
  return value;
}

// The escape whose letter is at position at; false when it is malformed.
bool append_escape(std::string_view body, size_t& at, std::string& text) {
  static constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
  const char letter = body[at];
  if (const size_t simple = kLetters.find(letter); simple != kLetters.npos) {
    text += kMeanings[simple];
    ++at;
  } else if (letter == '\n') {
    ++at;
  } else if (letter >= '0' && letter <= '7') {
    append_character(text, read_digits(body, at, 3, 8));
  } else if (letter == 'x' || letter == 'u' || letter == 'U') {
    const size_t count = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
    const size_t start = ++at;
    const char32_t value = read_digits(body, at, count, 16);
    const bool surrogate = value >= 0xd800 && value < 0xe000;
    if (at - start != count || value > 0x10ffff || surrogate) return false;
    append_character(text, value);
  } else {
    text += '\\';
    return letter != 'N';
  }
  return true;
}

}  // namespace

Result<std::string> unquote(std::string_view source, const Token& token) {
  const std::string_view body = token.text.substr(1, token.text.size() - 2);
  std::string text;
  for (size_t at = 0; at < body.size();) {
    if (body[at] != '\\') {
      text += body[at++];
      continue;
    }
    const size_t start = at++;
    if (!append_escape(body, at, text)) {
      return syntax_error(source, token.at + 1 + start, "the escape in this string is malformed");
    }
  }
  return text;
}

}  // namespace reprise::jinja

#include "text/jinja/number_text.h"

#include <charconv>
#include <cmath>
#include <string>

#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

// The digits without single underscores between them; empty when one stands elsewhere.
std::string without_underscores(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_') {
      return {};
    }
  }
  return digits;
}

}  // namespace

std::optional<int64_t> read_integer(std::string_view text, int base) {
  text = strip(text, nullptr, Side::kBoth);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const char mark = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 32) : '\0';
  if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b')) {
    text.remove_prefix(text[2] == '_' ? 3 : 2);
  }
  std::string digits = without_underscores(text);
  if (digits.empty() || digits[0] == '-') return {};
  if (negative) digits.insert(0, 1, '-');
  int64_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) return {};
  return value;
}

std::optional<double> read_real(std::string_view text) {
  text = strip(text, nullptr, Side::kBoth);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const std::string digits = without_underscores(text);
  if (digits.empty() || digits[0] == '-' || digits.find('(') != digits.npos) return {};
  double value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ptr != digits.data() + digits.size()) return {};
  if (read.ec == std::errc::result_out_of_range) {
    value = digits.find("e-") != digits.npos || digits.find("E-") != digits.npos ? 0.0 : HUGE_VAL;
  } else if (read.ec != std::errc()) {
    return {};
  }
  return negative ? -value : value;
}

}  // namespace reprise::jinja

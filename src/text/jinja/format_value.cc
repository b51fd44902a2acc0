// One value in Python's format mini-language.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "text/jinja/format.h"
#include "text/jinja/print.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

constexpr int64_t kMaxPrecision = 1000;

std::string integer_digits(uint64_t value, char type) {
  switch (type) {
    case 'x':
      return fmt::format("{:x}", value);
    case 'X':
      return fmt::format("{:X}", value);
    case 'o':
      return fmt::format("{:o}", value);
    case 'b':
      return fmt::format("{:b}", value);
    default:
      return fmt::format("{}", value);
  }
}

std::string_view integer_prefix(char type) {
  switch (type) {
    case 'x':
      return "0x";
    case 'X':
      return "0X";
    case 'o':
      return "0o";
    case 'b':
      return "0b";
    default:
      return "";
  }
}

// Digits of a finite or infinite size in C's e, f or g form.
Result<std::string> real_digits(double size, const FormatSpec& spec) {
  if (spec.precision > kMaxPrecision) {
    return fail(ErrorCode::kTemplateLimit, "more than {} decimals", kMaxPrecision);
  }
  char type = spec.type;
  double shown = size;
  if (type == '\0') {
    if (spec.precision < 0) return float_repr(size);
    type = 'g';
  }
  if (type == '%') {
    type = 'f';
    shown *= 100;
  }
  const std::string pattern = fmt::format("{{:{}.{{}}{}}}", spec.alternate ? "#" : "", type);
  std::string digits = fmt::format(fmt::runtime(pattern), shown,
                                   spec.precision < 0 ? 6 : static_cast<int>(spec.precision));
  if (spec.type == '%') digits += '%';
  return digits;
}

std::string grouped(std::string digits, char separator) {
  size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  while (end > 3) {
    end -= 3;
    digits.insert(end, 1, separator);
  }
  return digits;
}

Result<std::string> aligned(Runtime& runtime, std::string_view prefix, std::string_view digits,
                            const FormatSpec& spec, char otherwise) {
  const char align = spec.align != '\0' ? spec.align : otherwise;
  const std::string whole = fmt::format("{}{}", prefix, digits);
  if (align != '=') return padded(runtime, whole, align, spec.width, spec.fill);
  REPRISE_TRY(
      std::string body,
      padded(runtime, digits, '>', spec.width - static_cast<int64_t>(prefix.size()), spec.fill));
  return std::string(prefix) + body;
}

tl::unexpected<Error> wrong_type(const Value& value, char type) {
  return fail(ErrorCode::kTemplateRuntime, "the format '{}' does not fit an object of type '{}'",
              std::string_view(&type, 1), value.type_name());
}

}  // namespace

Result<std::string> padded(Runtime& runtime, std::string_view text, char align, int64_t width,
                           std::string_view fill) {
  const auto size = static_cast<int64_t>(character_count(text));
  const size_t missing = width > size ? static_cast<size_t>(width - size) : 0;
  // Python's center puts the odd one left when the width is odd; format's ^ always right.
  const size_t half =
      align == 'c' ? missing / 2 + (missing & static_cast<size_t>(width) & 1) : missing / 2;
  const size_t left = align == '<' ? 0 : align == '>' ? missing : half;
  TextBuilder out(runtime);
  out.append(left, fill);
  out.append(text);
  out.append(missing - left, fill);
  return out.take();
}

Result<std::string> format_value(Runtime& runtime, const Value& value, const FormatSpec& spec) {
  static constexpr std::string_view kIntegers = "dxXobn", kReals = "eEfFgG%";
  const bool number = value.is_number() && !(value.is(Kind::kBool) && spec.type == '\0');
  if (!number || spec.type == 's') {
    if (spec.type != '\0' && (spec.type != 's' || number)) return wrong_type(value, spec.type);
    REPRISE_TRY(std::string text, str(runtime, value));
    if (spec.precision >= 0) {
      text.resize(character_offset(text, static_cast<size_t>(spec.precision)));
    }
    return aligned(runtime, "", text, spec, '<');
  }
  const bool as_real =
      value.is(Kind::kFloat) || (spec.type != '\0' && kReals.find(spec.type) != kReals.npos);
  std::string digits;
  bool negative = false;
  if (as_real) {
    if (spec.type != '\0' && kReals.find(spec.type) == kReals.npos) {
      return wrong_type(value, spec.type);
    }
    negative = std::signbit(value.as_double()) && !std::isnan(value.as_double());
    REPRISE_TRY(digits, real_digits(std::fabs(value.as_double()), spec));
  } else {
    if (spec.type == 'c') {
      if (value.as_int() < 0 || value.as_int() > 0x10ffff) return wrong_type(value, 'c');
      append_character(digits, static_cast<char32_t>(value.as_int()));
      return aligned(runtime, "", digits, spec, '<');
    }
    if (spec.type != '\0' && kIntegers.find(spec.type) == kIntegers.npos) {
      return wrong_type(value, spec.type);
    }
    negative = value.as_int() < 0;
    const auto bits = static_cast<uint64_t>(value.as_int());
    digits = integer_digits(negative ? 0 - bits : bits, spec.type);
  }
  if (spec.grouping != '\0') digits = grouped(std::move(digits), spec.grouping);
  std::string prefix = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.alternate && !as_real) prefix += integer_prefix(spec.type);
  return aligned(runtime, prefix, digits, spec, '>');
}

}  // namespace reprise::jinja

// Filters of single values: defaults, numbers and JSON.
#include <charconv>
#include <cmath>

#include "base/try.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/filters.h"
#include "text/jinja/number_text.h"
#include "text/jinja/print.h"

namespace reprise::jinja {
namespace {

Result<Value> default_value(Runtime&, const Value& self, const Bound& arguments) {
  const bool missing = self.is(Kind::kUndefined) || (arguments.flag(1) && !self.truthy());
  if (!missing) return self;
  return arguments[0] != nullptr ? *arguments[0] : Value::borrowed("");
}

Result<Value> truncated(double value, const Value& otherwise) {
  if (!std::isfinite(value)) return otherwise;
  if (std::fabs(value) >= 0x1p63) {
    return fail(ErrorCode::kTemplateRuntime, "the integer does not fit in 64 bits");
  }
  return Value::integer(static_cast<int64_t>(value));
}

Result<Value> to_int(Runtime& runtime, const Value& self, const Bound& arguments) {
  const Value otherwise = arguments[0] != nullptr ? *arguments[0] : Value::integer(0);
  REPRISE_TRY(const int64_t base, arguments.integer(1, 10));
  if (base < 2 || base > 36) return fail(ErrorCode::kTemplateRuntime, "int() base {}", base);
  if (self.is(Kind::kUndefined)) return type_error("int", self);
  if (self.is_integral()) return Value::integer(self.as_int());
  if (self.is(Kind::kFloat)) return truncated(self.as_double(), otherwise);
  if (!self.is(Kind::kString)) return otherwise;
  REPRISE_CHECK(runtime.scan(self.text()));
  if (const auto value = read_integer(self.text(), static_cast<int>(base))) {
    return Value::integer(*value);
  }
  const auto value = read_real(self.text());
  return value ? truncated(*value, otherwise) : otherwise;
}

Result<Value> to_float(Runtime& runtime, const Value& self, const Bound& arguments) {
  if (self.is(Kind::kUndefined)) return type_error("float", self);
  if (self.is_number()) return Value::real(self.as_double());
  if (self.is(Kind::kString)) {
    REPRISE_CHECK(runtime.scan(self.text()));
    if (const auto value = read_real(self.text())) return Value::real(*value);
  }
  return arguments[0] != nullptr ? *arguments[0] : Value::real(0);
}

Result<Value> absolute(Runtime& runtime, const Value& self, const Bound&) {
  if (!self.is_number()) return type_error("abs", self);
  if (self.is(Kind::kFloat)) return Value::real(std::fabs(self.as_double()));
  return self.as_int() < 0 ? negated(runtime, self) : Value::integer(self.as_int());
}

// To a number of decimals, exact halves to even, as Python's round.
double round_decimals(double value, int64_t decimals) {
  if (!std::isfinite(value) || decimals > 320) return value;
  if (decimals < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-decimals));
    return std::isfinite(scale) ? std::nearbyint(value / scale) * scale : 0.0;
  }
  char digits[700];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed,
                                 static_cast<int>(decimals));
  double rounded = 0;
  std::from_chars(digits, end.ptr, rounded);
  return rounded;
}

Result<Value> rounded(Runtime&, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const int64_t decimals, arguments.integer(0, 0));
  REPRISE_TRY(const std::string_view method, arguments.text(1, "common"));
  if (!self.is_number()) return type_error("round", self);
  const double value = self.as_double();
  if (method == "common") {
    if (self.is_integral() && decimals >= 0) return Value::integer(self.as_int());
    const double result = round_decimals(value, decimals);
    return self.is_integral() ? truncated(result, self) : Value::real(result);
  }
  if (method != "ceil" && method != "floor") {
    return fail(ErrorCode::kTemplateRuntime, "round: the method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(decimals));
  const double scaled = method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale);
  if (!std::isfinite(scaled) || scale == 0) {
    return fail(ErrorCode::kTemplateRuntime, "round: {} decimals are too many", decimals);
  }
  return Value::real((scaled == 0 ? 0.0 : scaled) / scale);
}

Result<Value> json(Runtime& runtime, const Value& self, const Bound& arguments) {
  JsonStyle style;
  style.ensure_ascii = arguments.flag(0);
  style.sort_keys = arguments.flag(3);
  std::string indent;
  const Value* width = arguments[1];
  if (width != nullptr && !width->is(Kind::kNone)) {
    if (width->is(Kind::kString)) {
      indent = width->text();
    } else {
      REPRISE_TRY(const int64_t spaces, arguments.integer(1, 0));
      if (spaces > 1000) return fail(ErrorCode::kTemplateLimit, "tojson: indent {}", spaces);
      indent.assign(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
    }
    style.indent = &indent;
    style.item_separator = ",";
  }
  if (arguments[2] != nullptr && !arguments[2]->is(Kind::kNone)) {
    const Value& pair = *arguments[2];
    const bool fits = pair.is(Kind::kSequence) && pair.sequence().items.size() == 2 &&
                      pair.sequence().items[0].is(Kind::kString) &&
                      pair.sequence().items[1].is(Kind::kString);
    if (!fits) return type_error("place of two separators", pair);
    style.item_separator = pair.sequence().items[0].text();
    style.key_separator = pair.sequence().items[1].text();
  }
  return to_json(runtime, self, style);
}

Result<Value> attribute(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::string_view name, arguments.text(0, ""));
  const bool has = find_method(self, name) != nullptr || self.is(Kind::kNamespace) ||
                   self.is(Kind::kLoop) || self.is(Kind::kMacro);
  if (has || self.is(Kind::kUndefined)) return runtime.attribute(self, name);
  return runtime.undefined(
      fmt::format("'{} object' has no attribute '{}'", self.type_name(), name));
}

constexpr Native kFilters[] = {
    {"abs", "", absolute},
    {"attr", "name", attribute},
    {"d", "?default_value,?boolean", default_value},
    {"default", "?default_value,?boolean", default_value},
    {"float", "?default", to_float},
    {"int", "?default,?base", to_int},
    {"round", "?precision,?method", rounded},
    {"tojson", "?ensure_ascii,?indent,?separators,?sort_keys", json},
};

}  // namespace

std::span<const Native> value_filters() { return kFilters; }

}  // namespace reprise::jinja

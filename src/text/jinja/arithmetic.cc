#include "text/jinja/arithmetic.h"

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "text/jinja/format.h"
#include "text/jinja/print.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

tl::unexpected<Error> overflow() {
  return fail(ErrorCode::kTemplateRuntime, "the integer does not fit in 64 bits");
}

tl::unexpected<Error> division_by_zero() {
  return fail(ErrorCode::kTemplateRuntime, "division by zero");
}

Result<Value> integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return division_by_zero();
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow();
  }
  return Value::integer(result);
}

// Quotient rounded down and remainder of the divisor's sign, as Python has them.
Result<Value> integer_division(Operator op, int64_t a, int64_t b) {
  if (b == 0) return division_by_zero();
  if (b == -1) {
    if (op == Operator::kModulo) return Value::integer(0);
    return a == INT64_MIN ? Result<Value>(overflow()) : Value::integer(-a);
  }
  const bool round_down = a % b != 0 && (a % b < 0) != (b < 0);
  if (op == Operator::kModulo) return Value::integer(a % b + (round_down ? b : 0));
  return Value::integer(a / b - (round_down ? 1 : 0));
}

Result<Value> integer_binary(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return overflow();
      return Value::integer(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) return overflow();
      return Value::integer(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) return overflow();
      return Value::integer(result);
    case Operator::kDivide:
      if (b == 0) return division_by_zero();
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kPower:
      return integer_power(a, b);
    default:
      return integer_division(op, a, b);
  }
}

Result<Value> real_binary(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::real(a + b);
    case Operator::kSubtract:
      return Value::real(a - b);
    case Operator::kMultiply:
      return Value::real(a * b);
    case Operator::kPower:
      if (a == 0 && b < 0) return division_by_zero();
      if (a < 0 && b != std::floor(b)) {
        return fail(ErrorCode::kTemplateRuntime, "a complex number");
      }
      return Value::real(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return division_by_zero();
  if (op == Operator::kDivide) return Value::real(a / b);
  double remainder = std::fmod(a, b);
  const bool round_down = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == Operator::kFloorDivide) {
    return Value::real(std::round((a - remainder) / b - (round_down ? 1 : 0)));
  }
  if (round_down) remainder += b;
  return Value::real(remainder == 0 ? std::copysign(0.0, b) : remainder);
}

Result<Value> joined(Runtime& runtime, const Value& a, const Value& b) {
  TextBuilder out(runtime);
  const bool markup = a.is_markup() || b.is_markup();
  for (const Value* value : {&a, &b}) {
    if (markup && !value->is_markup()) {
      append_escaped(out, value->text());
    } else {
      out.append(value->text());
    }
  }
  return out.finish(markup);
}

Result<Value> repeated(Runtime& runtime, const Value& value, int64_t count) {
  const size_t times = count > 0 ? static_cast<size_t>(count) : 0;
  if (value.is(Kind::kString)) {
    TextBuilder out(runtime);
    out.append(times, value.text());
    return out.finish(value.is_markup());
  }
  const std::vector<Value>& items = value.sequence().items;
  if (!items.empty() && times > runtime.budget().bytes_left() / sizeof(Value) / items.size()) {
    return fail(ErrorCode::kTemplateLimit, "a list of {} times {} elements is too long", times,
                items.size());
  }
  std::vector<Value> result;
  result.reserve(times * items.size());
  for (size_t i = 0; !items.empty() && i < times; ++i) {
    result.insert(result.end(), items.begin(), items.end());
  }
  return runtime.sequence(value.sequence().flavour, std::move(result));
}

bool is_list_or_tuple(const Value& value) {
  return value.is(Flavour::kList) || value.is(Flavour::kTuple);
}

Result<Value> concatenated(Runtime& runtime, const Sequence& a, const Sequence& b) {
  REPRISE_CHECK(runtime.budget().spend((a.items.size() + b.items.size()) / 8));
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return runtime.sequence(a.flavour, std::move(items));
}

// First index, step and count of the elements that a slice takes.
struct Range {
  int64_t start;
  int64_t step;
  int64_t count;
};

Result<Range> slice_range(int64_t size, const Value* start, const Value* stop, const Value* step) {
  const auto left_out = [](const Value* value) {
    return value == nullptr || value->is(Kind::kNone);
  };
  for (const Value* value : {start, stop, step}) {
    if (!left_out(value) && !value->is_integral()) return type_error("a slice", *value);
  }
  const int64_t stride = left_out(step) ? 1 : step->as_int();
  if (stride == 0) return fail(ErrorCode::kTemplateRuntime, "slice step cannot be zero");
  const int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto clamp = [&](const Value* value, int64_t otherwise) {
    if (left_out(value)) return otherwise;
    const int64_t index = value->as_int();
    return std::clamp(index < 0 ? index + size : index, low, high);
  };
  const int64_t first = clamp(start, stride > 0 ? low : high);
  const int64_t last = clamp(stop, stride > 0 ? high : low);
  const int64_t span = stride > 0 ? last - first : first - last;
  if (span <= 0) return Range{first, stride, 0};
  const uint64_t distance =
      stride > 0 ? static_cast<uint64_t>(stride) : uint64_t{0} - static_cast<uint64_t>(stride);
  const uint64_t gaps = static_cast<uint64_t>(span - 1) / distance;
  return Range{first, stride, static_cast<int64_t>(gaps + 1)};
}

Result<Value> slice_text(Runtime& runtime, const Value& value, const Range& range) {
  const std::string_view text = value.text();
  if (range.step == 1) {
    const size_t begin = character_offset(text, static_cast<size_t>(range.start));
    const std::string_view tail = text.substr(begin);
    return runtime.text(
        std::string(tail.substr(0, character_offset(tail, static_cast<size_t>(range.count)))),
        value.is_markup());
  }
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size(); at += character_size(text, at)) offsets.push_back(at);
  REPRISE_CHECK(runtime.budget().spend(offsets.size() / 8));
  std::string taken;
  for (int64_t i = 0, at = range.start; i < range.count; ++i) {
    const size_t offset = offsets[static_cast<size_t>(at)];
    taken += text.substr(offset, character_size(text, offset));
    if (i + 1 < range.count) at += range.step;
  }
  return runtime.text(std::move(taken), value.is_markup());
}

}  // namespace

Result<Value> binary(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return integer_binary(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return real_binary(op, a.as_double(), b.as_double());
  if (op == Operator::kModulo && a.is(Kind::kString)) return format_percent(runtime, a, b);
  if (op == Operator::kAdd && a.is(Kind::kString) && b.is(Kind::kString)) {
    return joined(runtime, a, b);
  }
  if (op == Operator::kAdd && is_list_or_tuple(a) && is_list_or_tuple(b) &&
      a.sequence().flavour == b.sequence().flavour) {
    return concatenated(runtime, a.sequence(), b.sequence());
  }
  if (op == Operator::kMultiply) {
    if ((a.is(Kind::kString) || is_list_or_tuple(a)) && b.is_integral()) {
      return repeated(runtime, a, b.as_int());
    }
    if (a.is_integral() && (b.is(Kind::kString) || is_list_or_tuple(b))) {
      return repeated(runtime, b, a.as_int());
    }
  }
  for (const Value* value : {&a, &b}) {
    if (value->is(Kind::kUndefined)) return type_error("an operation", *value);
  }
  static constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  return fail(ErrorCode::kTemplateRuntime, "'{}' {} '{}' is not possible", a.type_name(),
              kSymbols[static_cast<size_t>(op)], b.type_name());
}

Result<Value> negated(Runtime&, const Value& value) {
  if (value.is(Kind::kFloat)) return Value::real(-value.as_double());
  if (!value.is_integral()) return type_error("negation", value);
  if (value.as_int() == INT64_MIN) return overflow();
  return Value::integer(-value.as_int());
}

Result<Value> slice(Runtime& runtime, const Value& value, const Value* start, const Value* stop,
                    const Value* step) {
  const bool text = value.is(Kind::kString);
  const bool list =
      is_list_or_tuple(value) || value.is(Flavour::kRange) || value.is(Flavour::kGroup);
  if (!text && !list) return type_error("a slice", value);
  REPRISE_TRY(const int64_t size, runtime.length(value));
  REPRISE_TRY(const Range range, slice_range(size, start, stop, step));
  if (text) return slice_text(runtime, value, range);
  std::vector<Value> taken;
  REPRISE_CHECK(runtime.budget().spend(static_cast<uint64_t>(range.count) / 8));
  for (int64_t i = 0, at = range.start; i < range.count; ++i) {
    taken.push_back(value.sequence().items[static_cast<size_t>(at)]);
    if (i + 1 < range.count) at += range.step;
  }
  return runtime.sequence(value.sequence().flavour, std::move(taken));
}

}  // namespace reprise::jinja

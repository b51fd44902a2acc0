// Tests: what stands behind `is`.
#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "text/jinja/compare.h"
#include "text/jinja/native.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

template <bool (*predicate)(const Value&)>
Result<Value> test(Runtime&, const Value& self, const Bound&) {
  return Value::boolean(predicate(self));
}

template <Kind kind>
bool is_kind(const Value& value) {
  return value.is(kind);
}

bool is_defined(const Value& value) { return !value.is(Kind::kUndefined); }
bool is_true(const Value& value) { return value.is(Kind::kBool) && value.as_bool(); }
bool is_false(const Value& value) { return value.is(Kind::kBool) && !value.as_bool(); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_callable(const Value& value) {
  return value.is(Kind::kMacro) || value.is(Kind::kFunction) || value.is(Kind::kUndefined);
}
bool is_iterable(const Value& value) {
  return value.is(Kind::kUndefined) || value.is(Kind::kString) || value.is(Kind::kSequence) ||
         value.is(Kind::kDict) || value.is(Kind::kLoop);
}
// What has a length and can be subscripted.
bool is_sequence(const Value& value) {
  if (value.is(Kind::kSequence)) return value.sequence().flavour <= Flavour::kRange;
  return value.is(Kind::kUndefined) || value.is(Kind::kString) || value.is(Kind::kDict);
}
bool is_escaped(const Value& value) { return value.is_markup(); }

template <bool expected>
Result<Value> parity(Runtime&, const Value& self, const Bound&) {
  if (self.is(Kind::kFloat)) {
    return Value::boolean(std::fmod(self.as_double(), 2.0) == (expected ? 0.0 : 1.0));
  }
  if (!self.is_integral()) return type_error("a test of parity", self);
  return Value::boolean((self.as_int() % 2 == 0) == expected);
}

Result<Value> divisible_by(Runtime&, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const int64_t divisor, arguments.integer(0, 0));
  if (!self.is_integral()) return type_error("a division", self);
  if (divisor == 0) return fail(ErrorCode::kTemplateRuntime, "division by zero");
  return Value::boolean(divisor == -1 || self.as_int() % divisor == 0);
}

template <std::string (*map)(std::string_view), std::string (*other)(std::string_view)>
Result<Value> has_case(Runtime& runtime, const Value& self, const Bound&) {
  if (!self.is(Kind::kString)) return Value::boolean(false);
  REPRISE_CHECK(runtime.scan(self.text()));
  return Value::boolean(map(self.text()) == self.text() && other(self.text()) != self.text());
}

Result<Value> same_as(Runtime&, const Value& self, const Bound& arguments) {
  return Value::boolean(identical(self, *arguments[0]));
}

Result<Value> in(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const bool found, contains(runtime, *arguments[0], self));
  return Value::boolean(found);
}

template <bool expected>
Result<Value> equals(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const bool same, equal(runtime, self, *arguments[0]));
  return Value::boolean(same == expected);
}

Result<Value> below(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const bool result, less(runtime, self, *arguments[0]));
  return Value::boolean(result);
}

Result<Value> above(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const bool result, less(runtime, *arguments[0], self));
  return Value::boolean(result);
}

// a <= b as a < b or a == b, so that it is false for what is not a number.
Result<Value> at_most(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const bool smaller, less(runtime, self, *arguments[0]));
  return smaller ? Value::boolean(true) : equals<true>(runtime, self, arguments);
}

Result<Value> at_least(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const bool larger, less(runtime, *arguments[0], self));
  return larger ? Value::boolean(true) : equals<true>(runtime, self, arguments);
}

template <const Native* (*find)(std::string_view)>
Result<Value> is_name_of(Runtime&, const Value& self, const Bound&) {
  return Value::boolean(self.is(Kind::kString) && find(self.text()) != nullptr);
}

constexpr Native kTests[] = {
    {"defined", "", test<is_defined>},
    {"undefined", "", test<is_kind<Kind::kUndefined>>},
    {"none", "", test<is_kind<Kind::kNone>>},
    {"string", "", test<is_kind<Kind::kString>>},
    {"mapping", "", test<is_kind<Kind::kDict>>},
    {"sequence", "", test<is_sequence>},
    {"iterable", "", test<is_iterable>},
    {"number", "", test<is_number>},
    {"integer", "", test<is_kind<Kind::kInt>>},
    {"float", "", test<is_kind<Kind::kFloat>>},
    {"boolean", "", test<is_kind<Kind::kBool>>},
    {"true", "", test<is_true>},
    {"false", "", test<is_false>},
    {"callable", "", test<is_callable>},
    {"escaped", "", test<is_escaped>},
    {"filter", "", is_name_of<find_filter>},
    {"test", "", is_name_of<find_test>},
    {"odd", "", parity<false>},
    {"even", "", parity<true>},
    {"divisibleby", "num", divisible_by},
    {"lower", "", has_case<to_lower, to_upper>},
    {"upper", "", has_case<to_upper, to_lower>},
    {"sameas", "other", same_as},
    {"in", "seq", in},
    {"==", "other", equals<true>},
    {"eq", "other", equals<true>},
    {"equalto", "other", equals<true>},
    {"!=", "other", equals<false>},
    {"ne", "other", equals<false>},
    {"<", "other", below},
    {"lt", "other", below},
    {"lessthan", "other", below},
    {"<=", "other", at_most},
    {"le", "other", at_most},
    {">", "other", above},
    {"gt", "other", above},
    {"greaterthan", "other", above},
    {">=", "other", at_least},
    {"ge", "other", at_least},
};

}  // namespace

const Native* find_test(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTests), std::end(kTests),
                                   [&](const Native& test) { return test.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

}  // namespace reprise::jinja

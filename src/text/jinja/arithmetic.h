// Python's operators on values.
#pragma once

#include "text/jinja/runtime.h"

namespace reprise::jinja {

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower
};

/// Integers are 64 bits wide. Errors: kTemplateRuntime for overflow, division by zero and types
/// that do not fit; kTemplateLimit.
Result<Value> binary(Runtime& runtime, Operator op, const Value& a, const Value& b);
Result<Value> negated(Runtime& runtime, const Value& value);
/// value[start:stop:step]; null where left out.
Result<Value> slice(Runtime& runtime, const Value& value, const Value* start, const Value* stop,
                    const Value* step);

}  // namespace reprise::jinja

// Python's comparisons and membership.
#pragma once

#include "text/jinja/runtime.h"

namespace reprise::jinja {

Result<bool> equal(Runtime& runtime, const Value& a, const Value& b);
/// a < b. Errors: kTemplateRuntime for types that have no order.
Result<bool> less(Runtime& runtime, const Value& a, const Value& b);
/// needle in hay. Errors: kTemplateRuntime when hay holds nothing.
Result<bool> contains(Runtime& runtime, const Value& hay, const Value& needle);
/// The same object, as Python's `is` tells it.
bool identical(const Value& a, const Value& b);
/// Sorts values by keys[i] (same length), stably; returns the order as indices.
Result<std::vector<size_t>> sorted_order(Runtime& runtime, const std::vector<Value>& keys,
                                         bool reverse);

}  // namespace reprise::jinja

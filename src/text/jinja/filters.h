// Tables of filters, by what they work on.
#pragma once

#include <span>

#include "text/jinja/native.h"

namespace reprise::jinja {

std::span<const Native> text_filters();
std::span<const Native> value_filters();
std::span<const Native> sequence_filters();
std::span<const Native> order_filters();   ///< sorting, extremes and grouping
std::span<const Native> select_filters();  ///< map, select, reject and their kin

/// Reads "a.b.0" or an index off values, as the filters' attribute argument means it.
class AttributeGetter {
 public:
  /// path: null or none for the value itself. Errors: kTemplateRuntime.
  static Result<AttributeGetter> make(const Value* path);
  /// otherwise stands for an undefined result unless it is null.
  Result<Value> get(Runtime& runtime, const Value& value, const Value* otherwise = nullptr) const;

 private:
  std::vector<Value> parts_;
};

/// Lower case for texts, unless case_sensitive; other values are themselves.
Result<Value> sort_key(Runtime& runtime, const Value& value, bool case_sensitive);

}  // namespace reprise::jinja

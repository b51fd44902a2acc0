// Functions of the language that are written here: filters, tests, methods and globals.
#pragma once

#include "text/jinja/runtime.h"

namespace reprise::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Arguments in the order of the parameters; null where the caller left one out. A parameter list
/// that ends in "*" keeps what remains in rest.
struct Bound {
  std::vector<const Value*> values;
  Arguments rest;

  const Value* operator[](size_t i) const { return values[i]; }
  bool flag(size_t i, bool otherwise = false) const {
    return values[i] != nullptr ? values[i]->truthy() : otherwise;
  }
  /// Errors: kTemplateRuntime when the argument is no integer.
  Result<int64_t> integer(size_t i, int64_t otherwise) const;
  /// Errors: kTemplateRuntime when the argument is no string.
  Result<std::string_view> text(size_t i, std::string_view otherwise) const;
};

/// parameters: names divided by commas; "?" before those that may be left out, "*" for any others.
struct Native {
  std::string_view name;
  std::string_view parameters;
  Result<Value> (*function)(Runtime& runtime, const Value& self, const Bound& arguments);
};

/// A native function with the value it was taken from, as a value.
struct Function : Object {
  const Native* native = nullptr;
  Value self;
};

/// Errors: kTemplateRuntime when the arguments do not fit, and those of the function.
Result<Value> call_native(Runtime& runtime, const Native& native, const Value& self,
                          const Arguments& arguments);

/// Null when there is none of that name.
const Native* find_filter(std::string_view name);
const Native* find_test(std::string_view name);
const Native* find_global(std::string_view name);
/// Methods of a value's type; those that would change it are not among them.
const Native* find_method(const Value& value, std::string_view name);
/// True for the methods of Python's list and dict that change the value.
bool is_mutator(const Value& value, std::string_view name);

}  // namespace reprise::jinja

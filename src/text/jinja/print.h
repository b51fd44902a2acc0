// Text forms of values: Python's str() and repr(), and JSON.
#pragma once

#include "text/jinja/runtime.h"

namespace reprise::jinja {

std::string float_repr(double value);
/// Python's str(value); undefined is empty. Errors: kTemplateLimit.
Result<std::string> str(Runtime& runtime, const Value& value);
Result<std::string> repr(Runtime& runtime, const Value& value);
/// str(value) as a value; a text is itself.
Result<Value> str_value(Runtime& runtime, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  const std::string* indent = nullptr;  ///< one level of it; null for one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// Python's json.dumps. Errors: kTemplateRuntime for what JSON does not know.
Result<Value> to_json(Runtime& runtime, const Value& value, const JsonStyle& style);
/// & < > ' " as markupsafe escapes them.
void append_escaped(TextBuilder& out, std::string_view text);

}  // namespace reprise::jinja

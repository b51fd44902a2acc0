// Python's two ways to format text: "%s" % value and "{}".format(value).
#pragma once

#include "text/jinja/native.h"

namespace reprise::jinja {

/// template % values; values is a tuple, a dict for %(name)s, or the only value.
/// Errors: kTemplateRuntime when they do not fit.
Result<Value> format_percent(Runtime& runtime, const Value& text, const Value& values);

/// text.format(arguments). Errors: kTemplateRuntime.
Result<Value> format_braces(Runtime& runtime, const Value& text, const Arguments& arguments);

/// Python's str.ljust, center and rjust: align is one of "<^>". Errors: kTemplateLimit.
Result<std::string> padded(Runtime& runtime, std::string_view text, char align, int64_t width,
                           std::string_view fill);

/// How one value is to be written.
struct FormatSpec {
  std::string fill = " ";
  char align = '\0';  ///< < > ^ = or 0: by type
  char sign = '-';
  bool alternate = false;
  char grouping = '\0';  ///< , or _
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

/// Errors: kTemplateRuntime when type does not fit the value; kTemplateLimit.
Result<std::string> format_value(Runtime& runtime, const Value& value, const FormatSpec& spec);

}  // namespace reprise::jinja

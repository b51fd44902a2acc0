// Text operations that filters and methods share.
#pragma once

#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {

/// Python's str.replace; count < 0 replaces all. Errors: kTemplateLimit.
Result<Value> replaced(Runtime& runtime, std::string_view text, std::string_view from,
                       std::string_view to, int64_t count);
/// Python's str.splitlines; with the line ends when keep is true. Errors: kTemplateLimit.
Result<std::vector<std::string_view>> split_lines(Runtime& runtime, std::string_view text,
                                                  bool keep);
/// Python's str.strip of the characters of set, white space when it is null or none. Errors:
/// kTemplateRuntime, kTemplateLimit.
Result<std::string_view> stripped(Runtime& runtime, std::string_view text, const Value* set,
                                  Side side);
/// Texts joined as values of a list.
Result<Value> text_list(Runtime& runtime, const std::vector<std::string_view>& texts);

}  // namespace reprise::jinja

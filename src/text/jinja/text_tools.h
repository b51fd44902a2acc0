// Text operations that filters and methods share.
#pragma once

#include "text/jinja/runtime.h"

namespace reprise::jinja {

/// Python's str.replace; count < 0 replaces all. Errors: kTemplateLimit.
Result<Value> replaced(Runtime& runtime, std::string_view text, std::string_view from,
                       std::string_view to, int64_t count);
/// Python's str.splitlines; with the line ends when keep is true.
std::vector<std::string_view> split_lines(std::string_view text, bool keep);
/// Texts joined as values of a list.
Result<Value> text_list(Runtime& runtime, const std::vector<std::string_view>& texts);

}  // namespace reprise::jinja

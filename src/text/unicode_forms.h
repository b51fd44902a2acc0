// Unicode normalisation forms in linear time, and simple character mappings.
#pragma once

#include <string>
#include <string_view>

namespace reprise {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

/// Of valid UTF-8. A run of more than 128 combining marks is normalised in parts, which bounds the
/// cost of reordering it.
std::string to_unicode_form(std::string_view text, UnicodeForm form);
std::string to_lowercase(std::string_view text);
/// Without nonspacing marks (general category Mn).
std::string strip_accents(std::string_view text);
std::string strip_white_space(std::string_view text, bool left, bool right);

}  // namespace reprise

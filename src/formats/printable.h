// Text that came from a file, made safe for a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace reprise {

/// The text in single quotes; control characters and bytes that are not UTF-8 are escaped as \xNN,
/// long texts are cut to 80 bytes and "...".
std::string printable(std::string_view text);

/// True when the text is valid UTF-8.
bool is_utf8(std::string_view text);

}  // namespace reprise

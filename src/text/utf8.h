// UTF-8 that may be broken: one unit at a time, and repair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace reprise {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";             // U+2581

/// What starts a text: a character, or the longest piece that cannot be one.
struct Utf8Unit {
  uint32_t code_point = 0;  ///< of a valid unit
  uint8_t bytes = 0;        ///< 1 to 4; 0 only for an empty text
  bool valid = false;
  bool open = false;  ///< not valid, but more bytes at its end could make it so
};
Utf8Unit utf8_unit(std::string_view text);

/// Appends a code point below 0x110000.
void append_utf8(uint32_t code_point, std::string& text);

/// The text with every broken piece (maximal subpart, as the Unicode standard recommends) replaced
/// by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

/// Length of the longest prefix that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view text);

/// The text with every occurrence of from (not empty) replaced, left to right.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// True for Unicode's White_Space property.
bool is_white_space(uint32_t code_point);

/// Bytes of the last character of a valid, non-empty text.
size_t last_character_bytes(std::string_view text);

}  // namespace reprise

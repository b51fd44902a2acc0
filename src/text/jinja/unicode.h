// Characters of UTF-8 text as Python's str sees them. Bytes that are not UTF-8 count as one
// character each and are copied unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace reprise::jinja {

/// Bytes of the character at offset at, which must be inside text.
size_t character_size(std::string_view text, size_t at);
/// The character at offset at; moves at behind it. U+FFFD for a byte that is not UTF-8.
char32_t next_character(std::string_view text, size_t& at);
/// Offset of the character that ends at end (end > 0).
size_t previous_character(std::string_view text, size_t end);
size_t character_count(std::string_view text);
/// Byte offset of character number index, or the end of text.
size_t character_offset(std::string_view text, size_t index);
void append_character(std::string& text, char32_t character);

bool is_space(char32_t character);
bool is_alphabetic(char32_t character);
bool is_decimal(char32_t character);
bool is_identifier(char32_t character);  ///< Python's \w

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalized(std::string_view text);  ///< first letter upper, the others lower
std::string swapped_case(std::string_view text);
std::string title_case(std::string_view text);  ///< every run of letters capitalized

enum class Side { kBoth, kLeft, kRight };
/// text without the characters of set (white space when set is null) at its ends.
std::string_view strip(std::string_view text, const std::string_view* set, Side side);

}  // namespace reprise::jinja

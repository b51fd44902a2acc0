// GPT-2's way of writing bytes as printable characters: a byte that is printable in Latin-1 stands
// for itself, the others for U+0100 onwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reprise {

/// The character (code point below 0x144) that a byte is written as.
uint32_t byte_level_character(uint8_t byte);
/// Each byte as its character, in UTF-8.
std::string to_byte_level(std::string_view bytes);
/// The bytes; empty when a character stands for none.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace reprise

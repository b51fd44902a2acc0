// The known word that a mistyped one most likely means.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace reprise {

/// Insertions, deletions, replacements and swaps of neighbours that make b of a, ASCII case
/// ignored.
size_t edits(std::string_view a, std::string_view b);

/// The candidate with the fewest edits from word; where none is near, one that begins the word;
/// else nothing.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);

/// " (did you mean NAME?)", or nothing.
std::string suggestion(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace reprise

// The known word that a mistyped one most likely means.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace reprise {

/// The candidate with the fewest insertions, deletions, replacements and swaps of neighbours from
/// word, ASCII case ignored; where none is near, one that begins the word; else nothing.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);

/// " (did you mean NAME?)", or nothing.
std::string suggestion(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace reprise

// The known word that a mistyped one most likely means.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace reprise {

/// The candidate with the fewest insertions, deletions, replacements and swaps of neighbours from
/// word, ASCII case ignored; empty when none is near enough to be worth suggesting.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);

/// " (did you mean NAME?)", or nothing.
std::string suggestion(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace reprise

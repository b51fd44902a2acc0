// Pieces of a text as Python's str methods cut them, which the published metrics are written in.
#pragma once

#include <string_view>
#include <vector>

namespace reprise::eval {

/// str.split(): the runs of characters that are not white space.
std::vector<std::string_view> split_words(std::string_view text);

/// str.split(separator): always one piece more than there are separators.
std::vector<std::string_view> split_at(std::string_view text, char separator);

/// str.strip()
std::string_view stripped(std::string_view text);

/// re.findall(r"\d+"): the runs of decimal digits of any script.
std::vector<std::string_view> digit_runs(std::string_view text);

/// The text without newlines at its front, and split_at every other newline.
std::vector<std::string_view> lines_after_newlines(std::string_view text);

}  // namespace reprise::eval

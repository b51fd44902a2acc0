// What is said to the user beside results.
#pragma once

#include <string_view>

namespace reprise::cli {

/// Written at once. What cannot be written there is lost: there is nobody to tell.
void write_error(std::string_view text);

/// Whether the terminal obeys escape sequences, which TERM says.
bool terminal_obeys_escapes();

}  // namespace reprise::cli

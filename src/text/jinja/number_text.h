// Text to numbers, as Python's int() and float() read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace reprise::jinja {

/// Empty when text is no integer of the base (2 to 36) or does not fit in 64 bits.
std::optional<int64_t> read_integer(std::string_view text, int base);
std::optional<double> read_real(std::string_view text);

}  // namespace reprise::jinja

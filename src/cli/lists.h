// Options that hold several values, separated by commas.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/options.h"

namespace reprise::cli {

/// "a,b" -> {"a", "b"}; a comma at the end adds nothing.
std::vector<std::string> split_list(std::string_view text);

/// Whole numbers as parse_option reads them: "4K,8K". Errors: those of parse_option, for the flag.
Result<std::vector<uint32_t>> parse_list(const OptionSpec& spec, std::string_view text);

}  // namespace reprise::cli

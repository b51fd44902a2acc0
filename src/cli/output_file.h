// Results that go to files instead of standard output.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "reprise/error.h"

namespace reprise::cli {

/// kInvalidArgument where the file that an option names is one of those that are read.
Status check_not_read(std::string_view option, const std::string& path,
                      std::span<const std::string> read);

/// Writes or replaces a file. kFileUnwritable.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace reprise::cli

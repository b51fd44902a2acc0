// Results that go to files instead of standard output.
#pragma once

#include <string>
#include <string_view>

#include "reprise/error.h"

namespace reprise::cli {

/// Writes or replaces a file. kFileUnwritable.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace reprise::cli

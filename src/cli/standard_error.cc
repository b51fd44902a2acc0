#include "cli/standard_error.h"

#include <cstdio>

namespace reprise::cli {

void write_error(std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

}  // namespace reprise::cli

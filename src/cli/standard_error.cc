#include "cli/standard_error.h"

#include <cstdio>
#include <cstdlib>

namespace reprise::cli {

void write_error(std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

bool terminal_obeys_escapes() {
  const char* kind = std::getenv("TERM");
  return kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

}  // namespace reprise::cli

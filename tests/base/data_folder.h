// Where larger test data lies, if it is there.
#pragma once

#include <cstdlib>

namespace reprise::test {

/// REPRISE_DATA, or null when it is unset or empty.
inline const char* data_folder() {
  const char* folder = std::getenv("REPRISE_DATA");
  return folder != nullptr && *folder != '\0' ? folder : nullptr;
}

}  // namespace reprise::test

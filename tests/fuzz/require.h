// What a target holds of its input, whatever the build.
#pragma once

#include <cstdlib>

namespace reprise {

inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace reprise

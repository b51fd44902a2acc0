// Counts what the test program allocates; allocated.cc replaces operator new for it.
#pragma once

#include <cstddef>

namespace reprise::test {

/// Bytes ever asked for by new; freed ones are not subtracted.
size_t allocated_bytes();

}  // namespace reprise::test

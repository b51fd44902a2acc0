// What the operating system says about memory.
#pragma once

#include <cstdint>

namespace reprise {

/// Largest resident size of this process so far, in bytes.
uint64_t peak_rss_bytes();
/// Memory that can be taken without swapping, in bytes; 0 when unknown.
uint64_t available_memory_bytes();

}  // namespace reprise

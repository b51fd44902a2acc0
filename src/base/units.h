// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace reprise {

/// 98362432 -> "93.8 MiB".
std::string bytes_text(uint64_t bytes);

}  // namespace reprise

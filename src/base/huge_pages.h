// Memory for what is read as one stream again and again, such as weights.
#pragma once

#include <cstddef>
#include <memory>

namespace reprise {

/// bytes of memory, zero, 64-byte aligned, behind what was asked for last where there is room: in
/// blocks that ask for huge pages, because prefetching ends with each page. Null without memory. A
/// block is given back with its last piece. Thread-safe.
std::shared_ptr<std::byte[]> huge_page_memory(size_t bytes);

}  // namespace reprise

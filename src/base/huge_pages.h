// Memory for what is read as one stream again and again, such as weights and codes of keys.
#pragma once

#include <cstddef>
#include <memory>

namespace reprise {

/// bytes of memory, zero, behind what was asked for last where there is room: in blocks that ask
/// for huge pages, because prefetching ends with each page. alignment: a power of two of up to 2
/// MiB. Null without memory. A block is given back with its last piece. Thread-safe.
std::shared_ptr<std::byte[]> huge_page_memory(size_t bytes, size_t alignment = 64);

}  // namespace reprise

// What the operating system says about memory, and where a user's files lie.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace reprise {

/// Largest resident size of this process so far, in bytes.
uint64_t peak_rss_bytes();
/// Memory that can be taken without swapping, in bytes; 0 when unknown.
uint64_t available_memory_bytes();

/// $variable/reprise/name, or $HOME/below_home/reprise/name without it (XDG base directories);
/// empty where neither variable is set.
std::string user_file(const char* variable, std::string_view below_home, std::string_view name);

/// Whether two names, of files that need not exist, are of one.
bool is_one_file(const std::string& path, const std::string& other);

}  // namespace reprise

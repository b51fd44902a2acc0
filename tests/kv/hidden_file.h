// The file without a name that the disk tier keeps, for tests that damage it.
#pragma once

#include <fcntl.h>

#include <filesystem>
#include <string>

namespace reprise {

/// The descriptor of this process whose file lay in folder before it was unlinked; -1: none. Any
/// bytes of it can be read and written from now on, whole blocks or not.
inline int hidden_file(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with(folder) || !target.ends_with("(deleted)")) continue;
    const int file = std::stoi(entry.path().filename().string());
    ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_DIRECT);
    return file;
  }
  return -1;
}

}  // namespace reprise

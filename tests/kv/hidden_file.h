// The file without a name that the disk tier keeps, for tests that damage it.
#pragma once

#include <filesystem>
#include <string>

namespace reprise {

/// The descriptor of this process whose file lay in folder before it was unlinked; -1: none.
inline int hidden_file(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(folder) && target.ends_with("(deleted)")) {
      return std::stoi(entry.path().filename().string());
    }
  }
  return -1;
}

}  // namespace reprise

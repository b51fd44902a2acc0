#include "store/spare_room.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "store/segment.h"

namespace reprise {

bool SpareRoom::keep() {
  std::error_code none;
  bool there = std::filesystem::file_size(path_, none) == kBytes;
  if (!there) {
    const FileHandle file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    there = file.fd() >= 0 && ::posix_fallocate(file.fd(), 0, kBytes) == 0;
    if (!there) ::unlink(path_.c_str());
  }
  given_ = given_ && !there;
  return there;
}

bool SpareRoom::give() {
  std::error_code unknown;
  const auto room = std::filesystem::space(std::filesystem::path(path_).parent_path(), unknown);
  if (unknown || room.available >= kBytes || ::unlink(path_.c_str()) != 0) return false;
  given_ = true;
  return true;
}

}  // namespace reprise

// Read-only memory map of a whole file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "reprise/error.h"

namespace reprise {

class MappedFile {
 public:
  /// Errors: kFileNotFound, kFileUnreadable (also for folders and devices). An empty file maps to
  /// an empty span.
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  /// Gives the pages of a range that has been read back to the kernel; it may be read again.
  void release(std::span<const std::byte> range) const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace reprise

// Plain files for the session format: reading exact ranges, and replacing a file in one step.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "reprise/error.h"

namespace reprise {

/// The bytes of parts, one after another; parts are read from or written to where they lie.
using Parts = std::span<const iovec>;

uint64_t total_bytes(Parts parts);

/// All bytes at an offset of a file; false when that fails, errno says why (0: the file ends).
bool read_at(int file, std::byte* data, size_t bytes, uint64_t offset);
bool read_at(int file, Parts parts, uint64_t offset);
bool write_at(int file, const std::byte* data, size_t bytes, uint64_t offset);
/// Of offsets, sizes and memory, where a file is read past the system's cache (O_DIRECT).
inline constexpr size_t kDirectAlignment = 4096;

class InputFile {
 public:
  /// Errors: kFileNotFound, kFileUnreadable (also for anything but a regular file).
  static Result<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  /// Fills parts with the next bytes. Errors: kTruncated, kFileUnreadable.
  Status read(Parts parts);
  uint64_t size() const { return size_; }
  uint64_t offset() const { return offset_; }
  const std::string& path() const { return path_; }

 private:
  InputFile(std::string path, int fd, uint64_t size);

  std::string path_;
  int fd_;
  uint64_t size_, offset_ = 0;
};

/// A file (readable by its owner only) that takes the place of a path on commit and is gone
/// otherwise, also where the process is killed before: it has no name till then, where the file
/// system allows that, else one beside the path. Of a link, it replaces what that leads to. All
/// errors are kFileUnwritable.
class ReplacementFile {
 public:
  static Result<ReplacementFile> create(const std::string& name);
  ReplacementFile(ReplacementFile&& other) noexcept;
  ReplacementFile& operator=(ReplacementFile&&) = delete;
  ~ReplacementFile();

  Status write(Parts parts);
  /// Syncs the file, renames it and syncs its folder. Until the rename an error leaves path
  /// untouched; when only the last sync fails, path is replaced but may not survive a power cut.
  Status commit();

 private:
  ReplacementFile(std::string path, std::string folder);
  Status open_file();

  std::string path_, folder_name_, temporary_;  // temporary_: empty without a name
  int fd_ = -1, folder_ = -1;
};

}  // namespace reprise

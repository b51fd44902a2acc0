// The files of a store: append-only segments and the lock of those who write.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "store/chunk_format.h"
#include "store/chunk_index.h"

namespace reprise {

/// A descriptor that is closed by its last owner; what was opened stays readable after an unlink.
class FileHandle {
 public:
  explicit FileHandle(int fd) : fd_(fd) {}
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  ~FileHandle();
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// A record in a segment. Reading is thread-safe.
class RecordFile : public RecordReader {
 public:
  RecordFile(std::shared_ptr<const FileHandle> file, RecordPlace place)
      : file_(std::move(file)), place_(place) {}
  /// Errors: kTruncated, kFileUnreadable.
  Status read(uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::shared_ptr<const FileHandle> file_;
  RecordPlace place_;
};

/// Held by the one process that writes, across processes and within one.
class WriterLock {
 public:
  static Result<WriterLock> take(const std::string& folder);
  WriterLock(WriterLock&&) = default;

 private:
  explicit WriterLock(std::unique_ptr<FileHandle> file) : file_(std::move(file)) {}
  std::unique_ptr<FileHandle> file_;
};

class Segments {
 public:
  explicit Segments(std::string folder) : folder_(std::move(folder)) {}

  /// Bytes of every segment by number.
  Result<std::map<uint32_t, uint64_t>> sizes() const;
  /// kFileNotFound when there is no such segment.
  Result<RecordFile> open(const RecordPlace& place) const;
  /// Writes a record behind the last one and syncs it; segments beyond limit get no more records,
  /// and none below first. On an error the segment is as long as it was. Under the writer's lock.
  Result<RecordPlace> append(std::span<const std::span<const std::byte>> parts, uint64_t bytes,
                             uint64_t limit, uint32_t first = 1);
  Status remove(uint32_t segment) const;
  /// Makes records that are in no index unreadable for good, so that none comes back with a new
  /// one; who has read a record's head reads on. Under the writer's lock.
  Status erase(std::span<const RecordPlace> places) const;
  /// Gives back what append() wrote last.
  void undo(const RecordPlace& place) const;

 private:
  std::string path(uint32_t segment) const;

  std::string folder_;
  uint32_t named_ = 0;  // the last segment whose name this process made durable
};

/// Names and unlinks of a folder's files become durable. kFileUnwritable.
Status sync_folder(const std::string& folder);

}  // namespace reprise

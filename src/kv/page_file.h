// Pages on disk: fixed slots of a file that vanishes with the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kv/page_reader.h"
#include "reprise/error.h"

namespace reprise {

/// Slots are written and read as a whole, several at a time; each carries an xxh3 checksum, kept in
/// memory. After a failed write nothing more is written, what was written before stays readable.
class PageFile {
 public:
  /// A file in folder that nobody else can open. bytes: its largest size, as room(). direct: past
  /// the system's cache where that can be, so that pages lie in memory only once; what is written
  /// is aligned then. Errors: kInvalidArgument (room for no page), kFileUnwritable.
  static Result<std::unique_ptr<PageFile>> create(const std::string& folder, uint64_t bytes,
                                                  size_t page_bytes, bool direct);
  ~PageFile();
  /// bytes, or where it is 0 half of what is free in folder; 0 where that is not known.
  static uint64_t room(const std::string& folder, uint64_t bytes);

  struct Transfer {
    uint32_t slot = 0;
    std::byte* data = nullptr;
    bool failed = false;  // out
  };
  void write(std::span<Transfer> transfers);
  /// Fails also where the bytes are not those that were written.
  void read(std::span<Transfer> transfers);
  /// Of a slot that was written and is not given back before it is read.
  void describe(uint32_t slot, std::byte* data, PageReader::Read& read) const;
  PageReader& reader() { return *reader_; }

  static constexpr uint32_t kNoSlot = ~uint32_t{0};
  uint32_t take();  // kNoSlot when full
  void give_back(uint32_t slot);
  uint64_t limit() const { return error_.empty() ? limit_ : used(); }
  uint64_t used() const { return checksums_.size() - free_.size(); }
  const std::string& error() const { return error_; }  // why nothing more is written; or empty

 private:
  PageFile(std::string folder, int file, uint64_t limit, size_t page_bytes, bool direct);

  std::string folder_;
  int file_;
  uint64_t limit_;
  size_t page_bytes_;
  std::vector<uint64_t> checksums_;  // [slots ever used]
  std::vector<uint32_t> free_;
  std::string error_;
  ThreadPool threads_;
  std::unique_ptr<PageReader> reader_;
};

}  // namespace reprise

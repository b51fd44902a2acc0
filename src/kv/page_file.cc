#include "kv/page_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

namespace reprise {
namespace {

constexpr int kThreads = 4;  // requests that a disk gets at a time

// Calls pread or pwrite until all bytes are through; errno says why not (0: the file ends).
template <class Call, class Byte>
bool transfer_all(Call call, int file, Byte* data, size_t bytes, uint64_t offset) {
  while (bytes > 0) {
    const ssize_t done = call(file, data, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      if (done == 0) errno = 0;
      return false;
    }
    data += done;
    bytes -= static_cast<size_t>(done);
    offset += static_cast<uint64_t>(done);
  }
  return true;
}

}  // namespace

uint64_t PageFile::room(const std::string& folder, uint64_t bytes) {
  std::error_code unknown;
  const auto space = std::filesystem::space(folder, unknown);
  return bytes > 0 ? bytes : unknown ? 0 : space.available / 2;
}

Result<std::unique_ptr<PageFile>> PageFile::create(const std::string& folder, uint64_t bytes,
                                                   size_t page_bytes) {
  std::string path = folder + "/reprise-kv-XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  if (file < 0 || ::unlink(path.c_str()) != 0) {
    const int error = errno;
    if (file >= 0) ::close(file);
    return fail(ErrorCode::kFileUnwritable,
                "cannot keep KV in '{}': {}; give --kv-disk a folder that can be written", folder,
                std::strerror(error));
  }
  bytes = room(folder, bytes);
  const uint64_t pages =
      std::min<uint64_t>(bytes / page_bytes, std::numeric_limits<int32_t>::max());
  if (pages == 0) {
    ::close(file);
    return fail(ErrorCode::kInvalidArgument,
                "{} bytes in '{}' hold no page of {} bytes; raise --kv-disk-size or free space",
                bytes, folder, page_bytes);
  }
  return std::unique_ptr<PageFile>(new PageFile(folder, file, pages, page_bytes));
}

PageFile::PageFile(std::string folder, int file, uint64_t limit, size_t page_bytes)
    : folder_(std::move(folder)),
      file_(file),
      limit_(limit),
      page_bytes_(page_bytes),
      threads_(kThreads) {}

PageFile::~PageFile() { ::close(file_); }

uint32_t PageFile::take() {
  if (!error_.empty()) return kNoSlot;
  if (!free_.empty()) {
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (checksums_.size() == limit_) return kNoSlot;
  checksums_.push_back(0);
  return static_cast<uint32_t>(checksums_.size() - 1);
}

void PageFile::give_back(uint32_t slot) { free_.push_back(slot); }

void PageFile::write(std::span<Transfer> transfers) {
  if (!error_.empty()) {
    for (Transfer& t : transfers) t.failed = true;
    return;
  }
  std::atomic<int> error{0};
  threads_.run(transfers.size(), [&](size_t i, int) {
    Transfer& t = transfers[i];
    checksums_[t.slot] = XXH3_64bits(t.data, page_bytes_);
    t.failed =
        error != 0 || !transfer_all(::pwrite, file_, t.data, page_bytes_, t.slot * page_bytes_);
    if (t.failed && error == 0) error = errno != 0 ? errno : EIO;
  });
  if (error == 0) return;
  error_ = fmt::format("cannot write KV to '{}': {}; going on without the disk", folder_,
                       std::strerror(error));
}

void PageFile::read(std::span<Transfer> transfers) {
  threads_.run(transfers.size(), [&](size_t i, int) {
    Transfer& t = transfers[i];
    t.failed = !transfer_all(::pread, file_, t.data, page_bytes_, t.slot * page_bytes_) ||
               XXH3_64bits(t.data, page_bytes_) != checksums_[t.slot];
  });
}

}  // namespace reprise

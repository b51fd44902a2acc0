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

#include "kv/file_io.h"

namespace reprise {
namespace {

constexpr int kThreads = 4;  // that write, or read while somebody waits

}  // namespace

uint64_t PageFile::room(const std::string& folder, uint64_t bytes) {
  std::error_code unknown;
  const auto space = std::filesystem::space(folder, unknown);
  return bytes > 0 ? bytes : unknown ? 0 : space.available / 2;
}

Result<std::unique_ptr<PageFile>> PageFile::create(const std::string& folder, uint64_t bytes,
                                                   size_t page_bytes, bool direct) {
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
  // Some file systems cannot; then the system's cache holds pages too.
  direct = direct && page_bytes % kDirectAlignment == 0 && ::fcntl(file, F_SETFL, O_DIRECT) == 0;
  return std::unique_ptr<PageFile>(new PageFile(folder, file, pages, page_bytes, direct));
}

PageFile::PageFile(std::string folder, int file, uint64_t limit, size_t page_bytes, bool direct)
    : folder_(std::move(folder)),
      file_(file),
      limit_(limit),
      page_bytes_(page_bytes),
      threads_(kThreads),
      reader_(std::make_unique<PageReader>(file, page_bytes, direct)) {}

PageFile::~PageFile() {
  reader_.reset();  // it uses the file
  ::close(file_);
}

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
    t.failed = error != 0 || !write_at(file_, t.data, page_bytes_, uint64_t{t.slot} * page_bytes_);
    if (t.failed && error == 0) error = errno != 0 ? errno : EIO;
  });
  if (error == 0) return;
  error_ = fmt::format("cannot write KV to '{}': {}; going on without the disk", folder_,
                       std::strerror(error));
}

void PageFile::read(std::span<Transfer> transfers) {
  threads_.run(transfers.size(), [&](size_t i, int) {
    PageReader::Read read;
    describe(transfers[i].slot, transfers[i].data, read);
    reader_->read(read);
    transfers[i].failed = read.state != PageReader::Read::kDone;
  });
}

void PageFile::describe(uint32_t slot, std::byte* data, PageReader::Read& read) const {
  read.offset = uint64_t{slot} * page_bytes_;
  read.checksum = checksums_[slot];
  read.data = data;
  read.state = PageReader::Read::kUnderWay;
}

}  // namespace reprise

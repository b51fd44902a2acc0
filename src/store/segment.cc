#include "store/segment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/checked.h"
#include "base/try.h"

namespace reprise {
namespace {

constexpr std::string_view kPrefix = "seg-", kSuffix = ".kv";

tl::unexpected<Error> unwritable(const std::string& path, std::string_view action) {
  const char* advice = errno == ENOSPC || errno == EDQUOT || errno == EFBIG
                           ? "; free room there, or lower the store's size limit"
                           : "";
  return fail(ErrorCode::kFileUnwritable, "cannot {} '{}': {}{}", action, path,
              std::strerror(errno), advice);
}

bool write_all(int fd, std::span<const std::byte> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return true;
}

}  // namespace

FileHandle::~FileHandle() {
  if (fd_ >= 0) ::close(fd_);
}

Status RecordFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got =
        ::pread(file_->fd(), out.data(), out.size(), static_cast<off_t>(place_.offset + offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return fail(ErrorCode::kFileUnreadable, "segment {}: {}", place_.segment,
                  std::strerror(errno));
    }
    if (got == 0) {
      return fail(ErrorCode::kTruncated, "segment {} ends at byte {}", place_.segment,
                  place_.offset + offset);
    }
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

Result<WriterLock> WriterLock::take(const std::string& folder) {
  const std::string path = folder + "/lock";
  auto file =
      std::make_unique<FileHandle>(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file->fd() < 0) return unwritable(path, "open");
  while (::flock(file->fd(), LOCK_EX) != 0) {
    if (errno != EINTR) return unwritable(path, "lock");
  }
  return WriterLock(std::move(file));
}

std::string Segments::path(uint32_t segment) const {
  return fmt::format("{}/{}{:08}{}", folder_, kPrefix, segment, kSuffix);
}

Result<std::map<uint32_t, uint64_t>> Segments::sizes() const {
  std::map<uint32_t, uint64_t> sizes;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder_, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    uint32_t number = 0;
    const char* last = name.data() + name.size() - kSuffix.size();
    const auto parsed = std::from_chars(name.data() + kPrefix.size(), last, number);
    if (parsed.ec != std::errc() || parsed.ptr != last) continue;
    std::error_code gone;  // by a collection meanwhile
    const uint64_t bytes = at->file_size(gone);
    if (!gone) sizes[number] = bytes;
  }
  if (error) return fail(ErrorCode::kFileUnreadable, "{}: {}", folder_, error.message());
  return sizes;
}

Result<RecordFile> Segments::open(const RecordPlace& place) const {
  const std::string name = path(place.segment);
  auto file = std::make_shared<const FileHandle>(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (file->fd() < 0) {
    return fail(errno == ENOENT ? ErrorCode::kFileNotFound : ErrorCode::kFileUnreadable,
                "cannot open '{}': {}", name, std::strerror(errno));
  }
  return RecordFile(std::move(file), place);
}

Result<RecordPlace> Segments::append(std::span<const std::span<const std::byte>> parts,
                                     uint64_t bytes, uint64_t limit, uint32_t first) {
  REPRISE_TRY(const auto existing, sizes());
  uint32_t segment = first;
  uint64_t size = 0;
  if (!existing.empty() && existing.rbegin()->first >= first) {
    std::tie(segment, size) = *existing.rbegin();
    if (size > 0 && size + bytes > limit) {
      ++segment;
      size = 0;
    }
  }
  const std::string name = path(segment);
  const FileHandle file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file.fd() < 0) return unwritable(name, "open");
  const RecordPlace place = {segment, *CheckedSize(size).align_up(kRecordAlignment).value(), bytes};
  uint64_t at = place.offset;
  bool written = true;
  for (const auto part : parts) {
    written = written && write_all(file.fd(), part, at);
    at += part.size();
  }
  // The rest of the record is padding.
  written = written && ::ftruncate(file.fd(), static_cast<off_t>(place.offset + bytes)) == 0 &&
            ::fdatasync(file.fd()) == 0;
  Status status;
  if (!written) status = unwritable(name, "write");
  // Who made a segment may have been killed before its name was durable.
  if (status && (size == 0 || segment != named_)) status = sync_folder(folder_);
  if (!status) {
    // Where that fails, what is left is in no index: nothing is lost but room.
    [[maybe_unused]] const int cut = ::ftruncate(file.fd(), static_cast<off_t>(size));
    return tl::unexpected<Error>(status.error());
  }
  named_ = segment;
  return place;
}

Status Segments::remove(uint32_t segment) const {
  const std::string name = path(segment);
  if (::unlink(name.c_str()) != 0 && errno != ENOENT) return unwritable(name, "remove");
  return sync_folder(folder_);
}

Status Segments::erase(std::span<const RecordPlace> places) const {
  std::map<uint32_t, std::vector<uint64_t>> offsets;  // of each segment: it is synced once
  for (const RecordPlace& place : places) offsets[place.segment].push_back(place.offset);
  for (const auto& [segment, starts] : offsets) {
    const std::string name = path(segment);
    const FileHandle file(::open(name.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.fd() < 0 && errno == ENOENT) continue;
    bool written = file.fd() >= 0;
    constexpr std::array<std::byte, kChunkMagic.size()> kNoMagic = {};
    for (const uint64_t at : starts) written = written && write_all(file.fd(), kNoMagic, at);
    if (!written || ::fdatasync(file.fd()) != 0) return unwritable(name, "erase a chunk in");
  }
  return {};
}

void Segments::undo(const RecordPlace& place) const {
  [[maybe_unused]] const int cut =
      ::truncate(path(place.segment).c_str(), static_cast<off_t>(place.offset));
}

Status sync_folder(const std::string& folder) {
  const FileHandle file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.fd() < 0) return unwritable(folder, "open");
  // EINVAL: a file system without folders to sync.
  if (::fsync(file.fd()) != 0 && errno != EINVAL) return unwritable(folder, "sync");
  return {};
}

}  // namespace reprise

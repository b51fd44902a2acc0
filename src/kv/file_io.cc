#include "kv/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

// Walks parts through readv or writev calls that may stop anywhere.
class PartCursor {
 public:
  explicit PartCursor(Parts parts) : parts_(parts) { skip_empty(); }

  bool done() const { return part_ == parts_.size(); }
  /// The next bytes as at most IOV_MAX vectors.
  std::span<const iovec> window() {
    const size_t count = std::min(parts_.size() - part_, window_.size());
    std::copy_n(parts_.begin() + static_cast<std::ptrdiff_t>(part_), count, window_.begin());
    window_[0].iov_base = static_cast<std::byte*>(window_[0].iov_base) + within_;
    window_[0].iov_len -= within_;
    return {window_.data(), count};
  }
  void advance(size_t bytes) {
    within_ += bytes;
    while (part_ < parts_.size() && within_ >= parts_[part_].iov_len) {
      within_ -= parts_[part_++].iov_len;
    }
  }

 private:
  void skip_empty() { advance(0); }

  Parts parts_;
  size_t part_ = 0, within_ = 0;
  std::array<iovec, IOV_MAX> window_;
};

// Calls pread or pwrite until all bytes are through.
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

tl::unexpected<Error> unwritable(const std::string& path, std::string_view action) {
  return fail(ErrorCode::kFileUnwritable, "cannot {} '{}': {}", action, path, std::strerror(errno));
}

}  // namespace

bool read_at(int file, std::byte* data, size_t bytes, uint64_t offset) {
  return transfer_all(::pread, file, data, bytes, offset);
}

bool read_at(int file, Parts parts, uint64_t offset) {
  for (PartCursor cursor(parts); !cursor.done();) {
    const auto window = cursor.window();
    const ssize_t done =
        ::preadv(file, window.data(), static_cast<int>(window.size()), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      if (done == 0) errno = 0;
      return false;
    }
    offset += static_cast<uint64_t>(done);
    cursor.advance(static_cast<size_t>(done));
  }
  return true;
}

bool write_at(int file, const std::byte* data, size_t bytes, uint64_t offset) {
  return transfer_all(::pwrite, file, data, bytes, offset);
}

uint64_t total_bytes(Parts parts) {
  uint64_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

InputFile::InputFile(std::string path, int fd, uint64_t size)
    : path_(std::move(path)), fd_(fd), size_(size) {}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      offset_(other.offset_) {}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<InputFile> InputFile::open(const std::string& path) {
  // Without O_NONBLOCK the open of a pipe would wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const auto code = errno == ENOENT ? ErrorCode::kFileNotFound : ErrorCode::kFileUnreadable;
    return fail(code, "cannot open '{}': {}", path, std::strerror(errno));
  }
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  InputFile file(path, fd, regular ? static_cast<uint64_t>(info.st_size) : 0);
  if (!regular) return fail(ErrorCode::kFileUnreadable, "'{}' is not a regular file", path);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  return file;
}

Status InputFile::read(Parts parts) {
  for (PartCursor cursor(parts); !cursor.done();) {
    const auto window = cursor.window();
    const ssize_t bytes = ::readv(fd_, window.data(), static_cast<int>(window.size()));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) {
      return fail(ErrorCode::kFileUnreadable, "cannot read '{}' at byte {}: {}", path_, offset_,
                  std::strerror(errno));
    }
    if (bytes == 0) {
      return fail(ErrorCode::kTruncated, "'{}' ends at byte {}, before what it declares", path_,
                  offset_);
    }
    offset_ += static_cast<uint64_t>(bytes);
    cursor.advance(static_cast<size_t>(bytes));
  }
  return {};
}

namespace {

int open_nameless(const std::string& folder) {
  return ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, S_IRUSR | S_IWUSR);
}

// The name under which such a file is in its folder from now on; empty with errno set: it is not. A
// link cannot replace what is there, so it is a name that nothing has.
std::string give_name(int file, const std::string& folder) {
  const std::string own = fmt::format("/proc/self/fd/{}", file);
  for (int i = 0;; ++i) {
    std::string name = fmt::format("{}/.reprise-{}-{}.tmp", folder, ::getpid(), i);
    if (::linkat(AT_FDCWD, own.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0)
      return name;
    if (errno != EEXIST) return {};
  }
}

// Whether they can be made and named: known before gigabytes are written.
bool allows_nameless_files(const std::string& folder) {
  const int file = open_nameless(folder);
  if (file < 0) return false;
  const std::string name = give_name(file, folder);
  ::close(file);
  return !name.empty() && ::unlink(name.c_str()) == 0;
}

// What links lead to, be it there yet or not.
Result<std::string> behind_links(const std::string& name) {
  constexpr int kMostLinks = 40;  // that the system follows
  std::filesystem::path path = name;
  for (int followed = 0; followed < kMostLinks; ++followed) {
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) return path.string();  // no link
    path = path.parent_path() / target;
  }
  return fail(ErrorCode::kFileUnwritable, "'{}' is a link of too many links", name);
}

}  // namespace

ReplacementFile::ReplacementFile(std::string path, std::string folder)
    : path_(std::move(path)), folder_name_(std::move(folder)) {}

ReplacementFile::ReplacementFile(ReplacementFile&& other) noexcept
    : path_(std::move(other.path_)),
      folder_name_(std::move(other.folder_name_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)),
      folder_(std::exchange(other.folder_, -1)) {}

ReplacementFile::~ReplacementFile() {
  if (fd_ >= 0) ::close(fd_);
  if (folder_ >= 0) ::close(folder_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<ReplacementFile> ReplacementFile::create(const std::string& name) {
  REPRISE_TRY(const std::string path, behind_links(name));
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return unwritable(path, "write");
  if (exists && !S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kFileUnwritable, "'{}' exists and is not a regular file", path);
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  ReplacementFile file(path, folder.empty() ? "." : folder);
  REPRISE_CHECK(file.open_file());
  return file;
}

Status ReplacementFile::open_file() {
  folder_ = ::open(folder_name_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) return unwritable(path_, "open the folder of");
  if (allows_nameless_files(folder_name_)) fd_ = open_nameless(folder_name_);
  if (fd_ >= 0) return {};
  constexpr std::string_view kSuffix = ".tmp";
  std::string temporary = fmt::format("{}.XXXXXX{}", path_, kSuffix);
  fd_ = ::mkostemps(temporary.data(), kSuffix.size(), O_CLOEXEC);
  if (fd_ < 0) return unwritable(path_, "create a temporary file beside");
  temporary_ = std::move(temporary);
  return {};
}

Status ReplacementFile::write(Parts parts) {
  for (PartCursor cursor(parts); !cursor.done();) {
    const auto window = cursor.window();
    const ssize_t bytes = ::writev(fd_, window.data(), static_cast<int>(window.size()));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return unwritable(path_, "write");
    cursor.advance(static_cast<size_t>(bytes));
  }
  return {};
}

Status ReplacementFile::commit() {
  if (::fsync(fd_) != 0) return unwritable(path_, "sync");
  if (temporary_.empty()) temporary_ = give_name(fd_, folder_name_);
  if (temporary_.empty()) return unwritable(path_, "name what will replace");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return unwritable(path_, "replace");
  temporary_.clear();
  // EINVAL: a file system without folders to sync.
  if (::fsync(folder_) != 0 && errno != EINVAL) return unwritable(path_, "sync the folder of");
  return {};
}

}  // namespace reprise

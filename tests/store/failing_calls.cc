#include "store/failing_calls.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

namespace reprise {
namespace {

CallFault fault = CallFault::kNone;
int fault_at = 0, calls = 0;
bool armed = false;

// Whether the call fails; bytes is what it may write.
bool fails(size_t* bytes) {
  if (!armed) return false;
  ++calls;
  if (calls < fault_at || fault == CallFault::kNone) return false;
  if (fault == CallFault::kKill) ::raise(SIGKILL);
  if (fault == CallFault::kShort && bytes != nullptr && calls == fault_at && *bytes > 1) {
    *bytes /= 2;
    ++fault_at;
    return false;
  }
  if (calls > fault_at) return false;
  errno = fault == CallFault::kShort ? ENOSPC : EIO;
  return true;
}

}  // namespace

void arm_calls(CallFault what, int n) {
  fault = what;
  fault_at = n;
  calls = 0;
  armed = true;
}

int disarm_calls() {
  armed = false;
  return calls;
}

}  // namespace reprise

// In the place of the C library's.
extern "C" {
ssize_t write(int fd, const void* data, size_t bytes) {
  if (reprise::fails(&bytes)) return -1;
  return ::syscall(SYS_write, fd, data, bytes);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  if (reprise::fails(&bytes)) return -1;
  return ::syscall(SYS_pwrite64, fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  return ::pwrite(fd, data, bytes, offset);
}
int fsync(int fd) {
  if (reprise::fails(nullptr)) return -1;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
int fdatasync(int fd) {
  if (reprise::fails(nullptr)) return -1;
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}
int ftruncate(int fd, off_t length) noexcept {
  if (reprise::fails(nullptr)) return -1;
  return static_cast<int>(::syscall(SYS_ftruncate, fd, length));
}
int ftruncate64(int fd, off64_t length) noexcept { return ::ftruncate(fd, length); }
int truncate(const char* path, off_t length) noexcept {
  if (reprise::fails(nullptr)) return -1;
  return static_cast<int>(::syscall(SYS_truncate, path, length));
}
int unlink(const char* path) noexcept {
  if (reprise::fails(nullptr)) return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
}

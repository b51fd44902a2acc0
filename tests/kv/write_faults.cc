#include "kv/write_faults.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace reprise {
namespace {

std::atomic<int> kind{-1}, left{0}, changed{0};

ssize_t write_some(int file, const void* data, size_t bytes, off_t offset) {
  return ::syscall(SYS_pwrite64, file, data, bytes, offset);
}

ssize_t fail_with(int error) {
  errno = error;
  return -1;
}

}  // namespace

WriteFault::WriteFault(Kind which, int after) {
  changed = 0;
  left = after;
  kind = which;
}

WriteFault::~WriteFault() { kind = -1; }

int WriteFault::count() const { return changed; }

const char* WriteFault::message(Kind which) {
  return std::strerror(which == kFull || which == kShortThenFull ? ENOSPC : EIO);
}

}  // namespace reprise

// Takes the place of the C library's in this program.
extern "C" ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  using namespace reprise;
  constexpr size_t kBlock = 512;  // O_DIRECT writes whole blocks
  const int now = kind;
  if (now < 0 || left-- > 0) return write_some(file, data, bytes, offset);
  const int call = changed++;
  switch (now) {
    case WriteFault::kBroken:
      return fail_with(EIO);
    case WriteFault::kNothingWritten:
      return 0;
    case WriteFault::kShortThenFull:
      return bytes > kBlock ? write_some(file, data, kBlock, offset) : fail_with(ENOSPC);
    case WriteFault::kPieces:
      if (call % 3 == 0) return fail_with(EINTR);
      return write_some(file, data, std::min(bytes, kBlock), offset);
    default:
      return fail_with(ENOSPC);
  }
}

#include "kv/read_faults.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

namespace reprise {
namespace {

std::atomic<int> kind{-1}, period{1}, calls{0}, changed{0};

ssize_t read_some(int file, void* data, size_t bytes, off_t offset) {
  return ::syscall(SYS_pread64, file, data, bytes, offset);
}

ssize_t fail_with(int error) {
  errno = error;
  return -1;
}

}  // namespace

ReadFault::ReadFault(Kind which, int every) {
  calls = changed = 0;
  period = every;
  kind = which;
}

ReadFault::~ReadFault() { kind = -1; }

int ReadFault::count() const { return changed; }

}  // namespace reprise

// These take the place of the C library's in this program.
extern "C" {
ssize_t pread(int file, void* data, size_t bytes, off_t offset) {
  using namespace reprise;
  constexpr size_t kBlock = 512;
  const int now = kind;
  if (now < 0 || ++calls % period != 0) return read_some(file, data, bytes, offset);
  const int call = changed++;
  switch (now) {
    case ReadFault::kEnds:
      return 0;
    case ReadFault::kShortThenBroken:
      return bytes > kBlock ? read_some(file, data, kBlock, offset) : fail_with(EIO);
    case ReadFault::kPieces:
      if (call % 3 == 0) return fail_with(EINTR);
      return read_some(file, data, std::min(bytes, kBlock), offset);
    case ReadFault::kSlow:
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return read_some(file, data, bytes, offset);
    default:
      return fail_with(EIO);
  }
}
// As a call for the first part.
ssize_t preadv(int file, const iovec* parts, int count, off_t offset) {
  if (reprise::kind >= 0) return ::pread(file, parts[0].iov_base, parts[0].iov_len, offset);
  return ::syscall(SYS_preadv, file, parts, count, offset, 0);
}
ssize_t preadv64(int file, const iovec* parts, int count, off64_t offset) {
  return ::preadv(file, parts, count, offset);
}
ssize_t pread64(int file, void* data, size_t bytes, off64_t offset) {
  return ::pread(file, data, bytes, offset);
}
}

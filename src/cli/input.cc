#include "cli/input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "cli/interrupt.h"

namespace reprise::cli {

// Terminals are opened a second time, to be read without waiting: Ctrl-C throws away what was typed
// before it, so a read of what has been seen to be there could wait, after the signal, for ever.
Input Input::standard() {
  const int own = isatty(STDIN_FILENO) != 0
                      ? ::open("/dev/stdin", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
                      : -1;
  return {own >= 0 ? own : STDIN_FILENO, own >= 0};
}

Input Input::open(const std::string& path) {
  return {::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), true};
}

Input::~Input() {
  if (owned_ && file_ >= 0) close(file_);
}

ssize_t Input::read(std::span<char> buffer) const {
  while (wait_for_input(file_)) {
    const ssize_t got = ::read(file_, buffer.data(), buffer.size());
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) return got;
  }
  errno = EINTR;
  return -1;
}

}  // namespace reprise::cli

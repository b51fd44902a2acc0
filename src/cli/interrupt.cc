#include "cli/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace reprise::cli {
namespace {

std::atomic<int> pending{0};
std::atomic<int> last_signal{SIGINT};
static_assert(std::atomic<int>::is_always_lock_free, "written by a signal handler");

// A signal that comes sooner after another was sent twice, if it asks for no more than that one: it
// does not stop what the first one saves. One that comes later, when the first is not obeyed yet,
// ends the program at once: nobody waits that long twice.
constexpr time_t kPatience = 1;                   // seconds, up to one more
std::atomic<time_t> last_second{-1 - kPatience};  // of a clock that starts from 0
static_assert(std::atomic<time_t>::is_always_lock_free, "written by a signal handler");

std::atomic<bool> ending{false};  // what was asked for is under way
std::atomic<bool> suspension{false};

int wake = -1;  // readable from a signal on: it may come when a reader is not waiting yet

void on_signal(int signal) {
  if (signal == SIGHUP && last_signal == SIGHUP) return;  // shells repeat what the terminal sent
  const int error = errno;
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const time_t before = last_second.load();
  const bool soon = now.tv_sec - before <= kPatience;
  const bool asks_no_more = signal == last_signal || last_signal != SIGINT;
  if (soon && (ending || (pending != 0 && asks_no_more))) return;
  last_second = now.tv_sec;
  if (pending.exchange(signal) != 0 && !soon) _exit(128 + signal);
  last_signal = signal;
  eventfd_write(wake, 1);
  errno = error;
}

void on_suspension(int) {
  const int before = errno;
  suspension = true;
  eventfd_write(wake, 1);
  errno = before;
}

}  // namespace

void catch_interrupts() {
  wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // a write goes on, however slow its reader; reading waits below
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hang_up = {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup's word counts
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of the write
  sigset_t caught;                // a parent may have blocked them
  sigemptyset(&caught);
  sigaddset(&caught, SIGINT);
  sigaddset(&caught, SIGTERM);
  sigaddset(&caught, SIGHUP);
  sigprocmask(SIG_UNBLOCK, &caught, nullptr);
}

bool interrupted() { return pending.load() != 0; }

void acknowledge_interrupt() { pending = 0; }

void end_after_interrupt() {
  ending = true;
  pending = 0;
}

void catch_suspension(bool on) {
  struct sigaction action = {};
  sigaction(SIGTSTP, nullptr, &action);
  if (action.sa_handler == SIG_IGN) return;  // the parent's word counts
  if (on) suspension = false;
  action.sa_handler = on ? on_suspension : SIG_DFL;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTSTP, &action, nullptr);
  if (!on && suspension.exchange(false)) std::raise(SIGTSTP);  // it came when none waited any more
}

bool take_suspension() { return suspension.exchange(false); }

bool asked_to_end() { return last_signal != SIGINT; }

bool wait_for_input(int file) {
  std::array<pollfd, 2> files = {{{file, POLLIN, 0}, {wake, POLLIN, 0}}};
  while (!interrupted() && !suspension) {
    const int ready = poll(files.data(), files.size(), -1);
    eventfd_t signals = 0;
    eventfd_read(wake, &signals);  // seen, or of a signal acknowledged before
    if (interrupted() || suspension) return false;
    if (ready < 0 ? errno != EINTR : files[0].revents != 0) return true;
  }
  return false;
}

int interrupt_exit_code() { return 128 + last_signal; }

}  // namespace reprise::cli

#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace reprise::cli {
namespace {

std::atomic<int> pending{0};
std::atomic<int> last_signal{SIGINT};
static_assert(std::atomic<int>::is_always_lock_free, "written by a signal handler");

void on_signal(int signal) {
  if (pending.exchange(signal) != 0) _exit(128 + signal);
  last_signal = signal;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_signal;  // without SA_RESTART: a blocked read returns
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t caught;  // a parent may have blocked them
  sigemptyset(&caught);
  sigaddset(&caught, SIGINT);
  sigaddset(&caught, SIGTERM);
  sigprocmask(SIG_UNBLOCK, &caught, nullptr);
}

bool interrupted() { return pending.load() != 0; }

void acknowledge_interrupt() { pending = 0; }

int interrupt_exit_code() { return 128 + last_signal; }

}  // namespace reprise::cli

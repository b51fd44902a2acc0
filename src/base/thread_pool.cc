#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <system_error>

namespace reprise {
namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

// Long enough to bridge the serial work between two kernels, short enough not to burn an idle core.
constexpr auto kSpin = std::chrono::microseconds(200);
// A task that takes longer than these spins may wait for the core that the caller spins on.
constexpr int kYieldSpins = 4096;

constexpr uint64_t kTicketMask = 0xffffffff;

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = usable_cores();
  shares_ = std::vector<Share>(static_cast<size_t>(threads));
  try {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (const std::system_error&) {  // The system starts no more: others take their shares.
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

// A task is taken by advancing the low half of a share's tickets, whose high half is their end, and
// only then are call_ and context_ read: the region cannot end before that task is done. So a
// worker that comes late finds no ticket, and the caller waits for tasks, never for workers to show
// up.
void ThreadPool::run_erased(size_t tasks, Erased call, void* context) {
  call_ = call;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < shares_.size(); ++i) {
    const uint64_t first = tasks * i / shares_.size(), end = tasks * (i + 1) / shares_.size();
    shares_[i].tickets.store(end << 32 | first, std::memory_order_release);
  }
  job_.fetch_add(1);  // seq_cst: pairs with the sleeping_ increment in wait_for_job
  if (sleeping_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  take_tasks(0);
  for (int spins = 1; done_.load(std::memory_order_acquire) != tasks; ++spins) {
    relax();
    if (spins % kYieldSpins == 0) std::this_thread::yield();
  }
}

void ThreadPool::take_tasks(int thread) {
  size_t taken = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    auto& share = shares_[(static_cast<size_t>(thread) + i) % shares_.size()].tickets;
    uint64_t tickets = share.load(std::memory_order_acquire);
    while ((tickets & kTicketMask) < tickets >> 32) {
      if (!share.compare_exchange_weak(tickets, tickets + 1, std::memory_order_acquire)) continue;
      call_(context_, tickets & kTicketMask, thread);
      ++taken;
      tickets = share.load(std::memory_order_acquire);
    }
  }
  if (taken > 0) done_.fetch_add(taken, std::memory_order_release);
}

bool ThreadPool::wait_for_job(uint64_t seen) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  for (int spins = 0; job_.load(std::memory_order_acquire) == seen; ++spins) {
    if (stop_.load(std::memory_order_relaxed)) return false;
    relax();
    if (spins % 64 != 63 || std::chrono::steady_clock::now() < deadline) continue;
    std::unique_lock lock(mutex_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return job_.load() != seen || stop_; });
    sleeping_.fetch_sub(1);
  }
  return !stop_.load(std::memory_order_relaxed);
}

void ThreadPool::work(int thread) {
  for (uint64_t seen = 0; wait_for_job(seen);) {
    ++seen;
    take_tasks(thread);
  }
}

}  // namespace reprise

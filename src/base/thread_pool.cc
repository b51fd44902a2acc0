#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
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

// Looking for others' tasks takes lines from them: who has none left waits for as long as regions
// are usually uneven, and then twice as long each time.
struct Patience {
  int next = 64;  // spins
  bool ends(int spins) {
    if (spins < next) return false;
    next = 2 * spins;
    return true;
  }
};

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = usable_cores();
  shares_ = std::vector<Share>(static_cast<size_t>(threads));
  done_ = std::vector<Done>(static_cast<size_t>(threads));
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

void ThreadPool::run_slices(size_t tasks, const std::function<void(size_t, int)>& body) {
  for (size_t first = 0; first < tasks; first += kMostTasks) {
    run(std::min(kMostTasks, tasks - first),
        [&](size_t task, int thread) { body(first + task, thread); });
  }
}

// A task is taken by advancing a share's next task, and only then are the region's call and body
// read: it cannot end before that task is done. A share that still tells of an earlier region has
// not been touched in this one; so the caller resets nothing, a worker that comes late finds that
// all is done, and the caller waits for tasks, never for workers to show up. Every line that
// changes hands is waited for: all threads watch one, and each of them tells of its tasks in one.
void ThreadPool::run_erased(size_t tasks, Erased call, const void* body, size_t bytes) {
  region_.call = call;
  std::memcpy(region_.body, body, bytes);
  const uint64_t number = (region_.word.load(std::memory_order_relaxed) >> kTaskBits) + 1;
  const uint64_t word = number << kTaskBits | tasks;
  region_.word.store(word, std::memory_order_release);
  wake_sleeping();
  do_share(word, 0, 0);
  for (size_t share = 0; share < shares_.size(); ++share) wait_for_share(word, share);
}

// Rounded up: of few tasks the caller, which starts first, has one or one more than others.
size_t ThreadPool::first_task(uint64_t word, size_t share) const {
  return ((word & kMostTasks) * share + shares_.size() - 1) / shares_.size();
}

size_t ThreadPool::take_tasks(uint64_t word, size_t share, int thread) {
  const uint64_t number = word & ~uint64_t{kMostTasks};
  const uint64_t first = number | first_task(word, share),
                 end = number | first_task(word, share + 1);
  std::atomic<uint64_t>& next = shares_[share].next;
  size_t taken = 0;
  for (uint64_t seen = next.load(std::memory_order_relaxed);;) {
    const bool untouched = static_cast<int64_t>(seen - number) < 0;
    const uint64_t task = untouched ? first : seen;
    if (static_cast<int64_t>(task - end) >= 0) return taken;
    if (!next.compare_exchange_weak(seen, task + 1, std::memory_order_relaxed)) continue;
    region_.call(region_.body, task & kMostTasks, thread);
    ++taken;
    if (thread == 0) wake_sleeping();
    seen = next.load(std::memory_order_relaxed);
  }
}

void ThreadPool::do_share(uint64_t word, size_t share, int thread) {
  const size_t taken = take_tasks(word, share, thread);
  if (taken > 0) done_[share].tasks.fetch_add(taken, std::memory_order_release);
}

void ThreadPool::wait_for_share(uint64_t word, size_t share) {
  Done& done = done_[share];
  done.expected += first_task(word, share + 1) - first_task(word, share);
  Patience patience;
  for (int spins = 1; done.tasks.load(std::memory_order_acquire) != done.expected; ++spins) {
    relax();
    if (patience.ends(spins)) do_share(word, share, 0);
    if (spins % kYieldSpins == 0) std::this_thread::yield();
  }
}

// Without a fence, for which the caller would wait in every region, it may miss a worker that just
// falls asleep: it looks again after each task.
void ThreadPool::wake_sleeping() {
  if (sleeping_.load(std::memory_order_relaxed) == 0) return;
  {
    std::lock_guard lock(mutex_);
    ++wakes_;
  }
  wake_.notify_all();
}

// Once woken a worker spins, even if others did its tasks meanwhile: more regions follow.
void ThreadPool::sleep_until_woken(uint64_t word) {
  std::unique_lock lock(mutex_);
  sleeping_.fetch_add(1);
  wake_.wait(lock, [&, seen = wakes_] {
    return wakes_ != seen || region_.word.load(std::memory_order_relaxed) != word || stop_;
  });
  sleeping_.fetch_sub(1);
}

uint64_t ThreadPool::wait_for_region(uint64_t word, int thread) {
  auto deadline = std::chrono::steady_clock::now() + kSpin;
  Patience patience;
  for (int spins = 1;; ++spins) {
    const uint64_t now = region_.word.load(std::memory_order_acquire);
    if (now != word || stop_.load(std::memory_order_relaxed)) return now;
    relax();
    if (patience.ends(spins)) {
      const size_t others = shares_.size() - 1;
      for (size_t i = 1; i <= others; ++i) {
        do_share(word, (static_cast<size_t>(thread) + i) % shares_.size(), thread);
      }
    }
    if (spins % 64 != 0 || std::chrono::steady_clock::now() < deadline) continue;
    sleep_until_woken(word);
    deadline = std::chrono::steady_clock::now() + kSpin;
  }
}

void ThreadPool::work(int thread) {
  for (uint64_t word = 0, next; (next = wait_for_region(word, thread)) != word; word = next) {
    do_share(next, static_cast<size_t>(thread), thread);
  }
}

}  // namespace reprise

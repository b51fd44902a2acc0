#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

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

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = usable_cores();
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
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

void ThreadPool::run_erased(size_t tasks, Erased call, void* context) {
  call_ = call;
  context_ = context;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  job_.fetch_add(1);  // seq_cst: pairs with the sleeping_ increment in wait_for_job
  if (sleeping_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  take_tasks(0);
  while (busy_.load(std::memory_order_acquire) != 0) relax();
}

void ThreadPool::take_tasks(int thread) {
  for (size_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
    call_(context_, task, thread);
  }
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
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace reprise

// Fork-join pool for kernels: workers spin briefly between jobs, then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace reprise {

class ThreadPool {
 public:
  /// threads: total including the caller; 0 takes the usable cores. Fewer if the system says so.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(task, thread) once for every task in [0, tasks), thread in [0, size()); returns
  /// when all are done. A thread starts with its own share of consecutive tasks, so that regions
  /// over the same rows find them in its caches, and then helps the others; results may not depend
  /// on which thread runs a task. body does not throw. Not reentrant. tasks < 2^32.
  template <class Body>
  void run(size_t tasks, Body&& body) {
    if (tasks == 0) return;
    if (workers_.empty() || tasks == 1) {
      for (size_t task = 0; task < tasks; ++task) body(task, 0);
      return;
    }
    using BodyType = std::remove_reference_t<Body>;
    run_erased(
        tasks,
        [](void* context, size_t task, int thread) {
          (*static_cast<BodyType*>(context))(task, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Erased = void (*)(void* context, size_t task, int thread);
  struct alignas(64) Share {
    std::atomic<uint64_t> tickets{0};  // end << 32 | next task
  };

  void run_erased(size_t tasks, Erased call, void* context);
  void work(int thread);
  void take_tasks(int thread);
  bool wait_for_job(uint64_t seen);

  std::vector<std::thread> workers_;
  Erased call_ = nullptr;
  void* context_ = nullptr;
  std::vector<Share> shares_;  // of all threads that were asked for
  alignas(64) std::atomic<uint64_t> job_{0};
  alignas(64) std::atomic<size_t> done_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace reprise

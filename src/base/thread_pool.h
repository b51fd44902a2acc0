// Fork-join pool for kernels: workers spin briefly between jobs, then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <type_traits>
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
  /// on which thread runs a task. body does not throw. Not reentrant.
  template <class Body>
  void run(size_t tasks, Body&& body) {
    if (tasks == 0) return;
    if (workers_.empty() || tasks == 1) {
      for (size_t task = 0; task < tasks; ++task) body(task, 0);
      return;
    }
    if (tasks > kMostTasks) return run_slices(tasks, std::ref(body));
    using BodyType = std::remove_reference_t<Body>;
    if constexpr (kTravels<BodyType>) {
      run_erased(
          tasks,
          [](const std::byte* at, size_t task, int thread) {
            (*reinterpret_cast<const BodyType*>(at))(task, thread);
          },
          &body, sizeof body);
    } else {
      auto* const at = &body;
      run_erased(
          tasks,
          [](const std::byte* pointer, size_t task, int thread) {
            (**reinterpret_cast<BodyType* const*>(pointer))(task, thread);
          },
          &at, sizeof(void*));
    }
  }

 private:
  static constexpr size_t kTaskBits = 22, kMostTasks = (size_t{1} << kTaskBits) - 1;
  static constexpr size_t kBodyBytes = 48;
  template <class Body>
  static constexpr bool kFits = sizeof(Body) <= kBodyBytes;
  /// A body of which copies cannot be told apart, as a lambda is that captures references.
  template <class Body>
  static constexpr bool kTravels =
      kFits<Body> && alignof(Body) <= alignof(void*) &&
      std::is_trivially_copyable_v<Body>&& std::is_invocable_v<const Body&, size_t, int>;

  using Erased = void (*)(const std::byte* body, size_t task, int thread);
  // All that a thread needs to start, in the one line that all of them watch.
  struct alignas(64) Region {
    std::atomic<uint64_t> word{0};  // number << kTaskBits | tasks
    Erased call = nullptr;
    alignas(void*) std::byte body[kBodyBytes];  // or a pointer to it
  };
  struct alignas(64) Share {
    std::atomic<uint64_t> next{0};  // number of the region << kTaskBits | next task
  };
  struct alignas(64) Done {
    std::atomic<size_t> tasks{0};  // of the share, in all regions
    size_t expected = 0;           // only the caller looks at it
  };

  void run_slices(size_t tasks, const std::function<void(size_t, int)>& body);
  void run_erased(size_t tasks, Erased call, const void* body, size_t bytes);
  void work(int thread);
  size_t first_task(uint64_t word, size_t share) const;
  /// How many tasks of the share in this region the thread did.
  size_t take_tasks(uint64_t word, size_t share, int thread);
  void do_share(uint64_t word, size_t share, int thread);
  void wait_for_share(uint64_t word, size_t share);
  /// The word of a region after this one, or that of this one when the pool ends.
  uint64_t wait_for_region(uint64_t word, int thread);
  void sleep_until_woken(uint64_t word);
  void wake_sleeping();

  std::vector<std::thread> workers_;
  Region region_;
  std::vector<Share> shares_;  // of all threads that were asked for
  std::vector<Done> done_;     // of the shares
  alignas(64) std::atomic<bool> stop_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  uint64_t wakes_ = 0;  // under mutex_
};

}  // namespace reprise

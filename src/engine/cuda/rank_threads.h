// A thread for each of the devices that share a model.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "reprise/error.h"

namespace reprise {

/// Rank 0 is the caller's thread; the others have the device of their rank as their current one.
class RankThreads {
 public:
  explicit RankThreads(uint32_t ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  /// body(rank) on every rank's thread at the same time; returns when all have. The first error.
  Status run(const std::function<Status(uint32_t rank)>& body);

 private:
  void work(uint32_t rank);
  void run_own(uint32_t rank);

  std::vector<std::thread> workers_;                            // of ranks from 1 on
  const std::function<Status(uint32_t rank)>* body_ = nullptr;  // null: stop
  std::atomic<uint32_t> round_{0}, running_{0};
  std::mutex mutex_;
  Status status_;  // of the round
};

}  // namespace reprise

#include "engine/cuda/rank_threads.h"

#include <cuda_runtime_api.h>

#include <utility>

namespace reprise {

RankThreads::RankThreads(uint32_t ranks) {
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    workers_.emplace_back([this, rank] { work(rank); });
  }
}

RankThreads::~RankThreads() {
  body_ = nullptr;
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

Status RankThreads::run(const std::function<Status(uint32_t rank)>& body) {
  if (workers_.empty()) return body(0);
  body_ = &body;
  running_ = static_cast<uint32_t>(workers_.size());
  round_.fetch_add(1);
  round_.notify_all();
  run_own(0);
  for (uint32_t left = running_; left != 0; left = running_) running_.wait(left);
  return std::exchange(status_, {});
}

void RankThreads::work(uint32_t rank) {
  cudaSetDevice(static_cast<int>(rank));  // a failure is found by what comes next
  for (uint32_t round = 0;; ++round) {
    round_.wait(round);
    if (body_ == nullptr) return;
    run_own(rank);
    if (running_.fetch_sub(1) == 1) running_.notify_one();
  }
}

void RankThreads::run_own(uint32_t rank) {
  Status status = (*body_)(rank);
  if (status) return;
  const std::lock_guard lock(mutex_);
  if (status_) status_ = std::move(status);
}

}  // namespace reprise

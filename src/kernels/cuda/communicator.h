// What the devices that share a model exchange: sums and parts of rows, by NCCL.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/nccl.h"
#include "reprise/error.h"

namespace reprise::kernels::cuda {

/// One device's end. Every rank makes the same calls in the same order, each from a thread of its
/// own: a call may wait for the other ranks'. Calls enqueue, and may be captured; captured work is
/// destroyed before the communicator.
class Communicator {
 public:
  /// Of devices 0 to count - 1. kDeviceUnavailable: NCCL is missing (says how to get it) or failed.
  static Result<std::vector<std::unique_ptr<Communicator>>> create(uint32_t count);
  ~Communicator() { destroy(nccl_->comm_destroy); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  uint32_t rank() const { return rank_; }
  uint32_t count() const { return count_; }
  /// data [size] = the sum of all ranks' data, the same bits on each.
  Status sum(float* data, size_t size, cudaStream_t stream) const;
  /// data [count(), size]: every rank gives the part of its rank and gets the others.
  Status gather(float* data, size_t size, cudaStream_t stream) const;
  /// Ends what is enqueued on this device, whatever it waits for; later calls fail.
  void abort() { destroy(nccl_->comm_abort); }

 private:
  Communicator(std::shared_ptr<const Nccl> nccl, Nccl::Comm comm, uint32_t rank, uint32_t count)
      : nccl_(std::move(nccl)), comm_(comm), rank_(rank), count_(count) {}
  void destroy(Nccl::Result (*how)(Nccl::Comm));

  std::shared_ptr<const Nccl> nccl_;
  Nccl::Comm comm_;  // null once it was aborted
  uint32_t rank_, count_;
};

}  // namespace reprise::kernels::cuda

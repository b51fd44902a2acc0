// Fused prompts on a CUDA device.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "attention/cuda/device_executor.h"
#include "base/thread_pool.h"
#include "fusion/fused_pass.h"
#include "kernels/cuda/communicator.h"
#include "kernels/cuda/cuda_stream.h"
#include "model/cuda/device_model.h"

namespace reprise {

/// What computes on a device, for whoever else uses the stream in turn with it.
struct DeviceParts {
  const Model& model;                               // its rotary tables; the whole
  const kernels::cuda::Communicator* communicator;  // null: the device does not share the model
  DeviceModel& computes;
  DeviceExecutor& executor;
  kernels::cuda::PagedKv kv;
  cudaStream_t stream;
  uint32_t block;  // rows that go through a layer at a time
  ThreadPool& pool;
};

/// Calls for all devices that share a model; device i is that of rank i.
struct RankCalls {
  using Body = std::function<Status(uint32_t rank)>;
  /// body(rank) of every rank at the same time, with its device current.
  std::function<Status(const Body& body)> run;
  /// The same where ranks exchange something: body waits for nothing that is enqueued, and no pass
  /// can follow one that fails.
  std::function<Status(const Body& body)> enqueue;
  /// Waits for an event of every rank.
  std::function<Status(const std::function<const kernels::cuda::CudaEvent&(uint32_t rank)>& event)>
      wait;
};

/// Rows go through a layer, block by block, before any goes through the next one, so that what is
/// read of the store and of the weights serves all of them. Everything outlives the result.
/// resident_bytes: of page-locked memory that chunks stay in once they were read. kOutOfMemory.
Result<std::unique_ptr<FusionDevice>> cuda_fusion(std::vector<DeviceParts> ranks, RankCalls calls,
                                                  uint64_t resident_bytes);

}  // namespace reprise

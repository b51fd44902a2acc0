// Fused prompts on a CUDA device.
#pragma once

#include <memory>
#include <vector>

#include "attention/cuda/device_executor.h"
#include "base/thread_pool.h"
#include "fusion/fused_pass.h"
#include "model/cuda/device_model.h"

namespace reprise {

/// What computes on the device that is current, for whoever else uses the stream in turn with it.
struct DeviceParts {
  const Model& model;  // its rotary tables
  DeviceModel& computes;
  DeviceExecutor& executor;
  kernels::cuda::PagedKv kv;
  cudaStream_t stream;
  uint32_t block;  // rows that go through a layer at a time
  ThreadPool& pool;
};

/// Rows go through a layer, block by block, before any goes through the next one, so that what is
/// read of the store and of the weights serves all of them. Everything outlives the result.
/// resident_bytes: of page-locked memory that chunks stay in once they were read. kOutOfMemory.
Result<std::unique_ptr<FusionDevice>> cuda_fusion(const DeviceParts& parts,
                                                  uint64_t resident_bytes);

}  // namespace reprise

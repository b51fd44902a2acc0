// Forward passes on CUDA devices.
#pragma once

#include <memory>

#include "engine/backend.h"
#include "kv/page_pool.h"
#include "reprise/options.h"
#include "reprise/progress.h"

namespace reprise {

/// Of free device memory, for KV where nobody says otherwise: a gigabyte stays free for what is not
/// planned, and a fifth for what policies keep beside pages.
constexpr uint64_t default_device_kv_bytes(uint64_t free_bytes) {
  constexpr uint64_t kSpare = uint64_t{1} << 30;
  return free_bytes > kSpare ? (free_bytes - kSpare) / 5 * 4 : 0;
}

struct CudaEngine {
  PagePool kv;
  std::unique_ptr<Backend> backend;
};

/// kDeviceUnavailable when there are fewer devices, or the build has no CUDA.
Status find_cuda_devices(uint32_t count);

/// The model's weights move to devices 0 to options.tp - 1, whose memory holds the KV too; model
/// outlives the result. Errors: those of find_cuda_devices(), kDeviceUnavailable when a library is
/// missing, kUnsupported (a KV type or head size without kernels, a model that so many devices
/// cannot share), kOutOfMemory, kCancelled.
Result<CudaEngine> cuda_engine(Model& model, ThreadPool& pool, const EngineOptions& options,
                               const ProgressFn& progress);

}  // namespace reprise

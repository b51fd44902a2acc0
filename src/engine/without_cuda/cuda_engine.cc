// In builds without nvcc.
#include "engine/cuda/cuda_backend.h"

namespace reprise {

Status find_cuda_devices(uint32_t) {
  return fail(ErrorCode::kDeviceUnavailable,
              "this build has no CUDA; install the CUDA toolkit (nvcc) and build again, or use "
              "--device cpu");
}

Result<CudaEngine> cuda_engine(Model&, ThreadPool&, const EngineOptions&, const ProgressFn&) {
  return tl::unexpected<Error>(find_cuda_devices(1).error());
}

}  // namespace reprise

// In builds without nvcc.
#include "engine/cuda/cuda_backend.h"

namespace reprise {

Status find_cuda_devices(uint32_t) {
  return fail(
      ErrorCode::kDeviceUnavailable,
      "this build has no CUDA; build it where the CUDA toolkit (nvcc) and a GPU are, or with "
      "-DREPRISE_CUDA=ON, or use --device cpu");
}

Result<CudaEngine> cuda_engine(Model&, ThreadPool&, const EngineOptions&, const ProgressFn&) {
  return tl::unexpected<Error>(find_cuda_devices(1).error());
}

}  // namespace reprise

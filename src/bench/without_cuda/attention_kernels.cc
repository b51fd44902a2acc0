// In builds without nvcc.
#include "bench/cuda/attention_kernels.h"

#include "engine/cuda/cuda_backend.h"

namespace reprise {

Result<std::unique_ptr<AttentionKernels>> device_attention(const AttentionShape&) {
  return tl::unexpected<Error>(find_cuda_devices(1).error());
}

}  // namespace reprise

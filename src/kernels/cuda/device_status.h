// CUDA's errors as values. Not for .cu files: fmt does not compile under nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "reprise/error.h"

namespace reprise::kernels::cuda {

/// kOutOfMemory or kDeviceUnavailable; what: what was being done.
inline tl::unexpected<Error> device_failure(cudaError_t error, std::string_view what) {
  cudaGetLastError();  // what is told here is not kept for the next launch to tell
  if (error == cudaErrorMemoryAllocation) {
    return fail(ErrorCode::kOutOfMemory,
                "the CUDA device has no memory for {}; lower --kv-memory or --prefill-chunk", what);
  }
  return fail(ErrorCode::kDeviceUnavailable, "the CUDA device failed at {}: {}", what,
              cudaGetErrorString(error));
}

#define REPRISE_CUDA(call, what)                                        \
  do {                                                                  \
    if (const ::cudaError_t error_ = (call); error_ != ::cudaSuccess) { \
      return ::reprise::kernels::cuda::device_failure(error_, what);    \
    }                                                                   \
  } while (false)

}  // namespace reprise::kernels::cuda

// Values that kernels of a stream read. Not for .cu files.
#pragma once

#include <vector>

#include "base/try.h"
#include "kernels/cuda/device_buffer.h"

namespace reprise {

/// Enqueues a copy to a buffer that is made large enough; values may go when it returns.
template <class T>
Status send(const std::vector<T>& values, kernels::cuda::DeviceBuffer<T>& buffer,
            cudaStream_t stream) {
  constexpr std::string_view kWhat = "a fused prompt";
  REPRISE_CHECK(buffer.reserve(values.size(), kWhat));
  if (values.empty()) return {};
  REPRISE_CUDA(cudaMemcpyAsync(buffer.data(), values.data(), values.size() * sizeof(T),
                               cudaMemcpyHostToDevice, stream),
               kWhat);
  return {};
}

}  // namespace reprise

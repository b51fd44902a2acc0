// In builds without nvcc.
#include "bench/cuda/device_roof.h"

#include "engine/cuda/cuda_backend.h"

namespace reprise {

Result<std::unique_ptr<Roof>> device_roof(uint32_t count) {
  return tl::unexpected<Error>(find_cuda_devices(count).error());
}

}  // namespace reprise

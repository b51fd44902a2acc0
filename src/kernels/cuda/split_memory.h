// One range of addresses on a device: the first part is its own memory, the rest the host's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/device_status.h"

namespace reprise::kernels::cuda {

/// Kernels and cudaMemcpyAsync use both parts alike; the second is page-locked and read over the
/// bus. The host itself may not be able to use the addresses.
class SplitMemory {
 public:
  SplitMemory() = default;
  SplitMemory(const SplitMemory&) = delete;
  SplitMemory& operator=(const SplitMemory&) = delete;
  ~SplitMemory() { release(); }

  /// Zeroed, on the current device. Errors: kOutOfMemory, kDeviceUnavailable where the driver
  /// cannot do this.
  Status reserve(size_t device_bytes, size_t host_bytes);
  std::byte* data() const { return start_ + (device_room_ - device_bytes_); }

 private:
  struct Driver;

  Status map(const Driver& driver, std::byte* at, size_t bytes, bool on_host);
  Status map_window(const Driver& driver);
  Status register_beside(const Driver& driver);
  void release();

  std::byte* start_ = nullptr;  // of the range; the device's part ends on a step of the driver's
  size_t device_bytes_ = 0, device_room_ = 0, host_room_ = 0;
  size_t reserved_ = 0, mapped_ = 0;  // bytes from start_ on that are the driver's
  std::byte* registered_ = nullptr;   // the host's part, where it is an ordinary mapping
};

}  // namespace reprise::kernels::cuda

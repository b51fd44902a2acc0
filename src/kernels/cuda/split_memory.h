// One range of addresses on a device: the first part is its own memory, the rest the host's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/address_range.h"
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
  std::byte* data() const { return range_.data() + (device_room_ - device_bytes_); }

 private:
  Status register_beside();
  void release();

  AddressRange range_;  // the device's part ends on a step of the driver's
  size_t device_bytes_ = 0, device_room_ = 0, host_room_ = 0;
  std::byte* registered_ = nullptr;  // the host's part, where it is an ordinary mapping
};

}  // namespace reprise::kernels::cuda

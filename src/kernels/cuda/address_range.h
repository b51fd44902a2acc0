// A range of a device's addresses that gets its memory by and by.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/device_status.h"

namespace reprise::kernels::cuda {

/// Addresses never move, so that captured work stays valid while memory is added.
class AddressRange {
 public:
  static constexpr size_t kStep = size_t{2} << 20;  // the driver maps whole steps
  static constexpr size_t whole_steps(size_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }

  AddressRange() = default;
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange() { release(); }

  /// Takes addresses for so many bytes, in place of what it had; near, or anywhere for null.
  /// kDeviceUnavailable where the driver cannot do this.
  Status reserve(size_t bytes, std::byte* near, std::string_view what);
  /// Gives memory to the first bytes of the range, which is not cleared: of the current device, or
  /// page-locked of the host. kOutOfMemory leaves the range as it was.
  Status extend(size_t bytes, bool on_host, std::string_view what);
  void release();

  std::byte* data() const { return start_; }
  size_t mapped() const { return mapped_; }

 private:
  struct Driver;

  std::byte* start_ = nullptr;
  size_t reserved_ = 0, mapped_ = 0;  // bytes from start_ on
};

}  // namespace reprise::kernels::cuda

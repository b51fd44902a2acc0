// Owners of CUDA's streams and events. Not for .cu files (device_status.h).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <type_traits>

#include "kernels/cuda/device_status.h"

namespace reprise::kernels::cuda {

/// Makes a device current until it ends; then the one before.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

class CudaStream {
 public:
  /// urgent: before other streams' work where both wait for the device.
  static Result<CudaStream> create(bool urgent = false);
  cudaStream_t get() const { return stream_.get(); }

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy> stream_;
};

class CudaEvent {
 public:
  /// timed: ms_since() may be asked.
  static Result<CudaEvent> create(bool timed = false);
  Status record(cudaStream_t stream);
  /// Until everything before record() is done.
  Status wait() const;
  /// Lets a stream wait for that.
  Status hold(cudaStream_t stream) const;
  /// Whether it is done; does not wait.
  Result<bool> reached() const;
  /// Of what was enqueued after an earlier event; both are timed and have been waited for.
  Result<double> ms_since(const CudaEvent& earlier) const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy> event_;
};

}  // namespace reprise::kernels::cuda

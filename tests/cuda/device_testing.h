// Device memory for tests, and the check that there is a device.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace reprise::kernels::cuda {

inline bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

#define REPRISE_NEEDS_DEVICE() \
  if (!has_device()) GTEST_SKIP() << "no CUDA device"

template <typename T>
class DeviceArray {
 public:
  /// Every byte is fill.
  explicit DeviceArray(size_t size, int fill = 0) : size_(size) {
    EXPECT_EQ(cudaMalloc(&data_, bytes()), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, fill, bytes()), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { set(host); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return static_cast<T*>(data_); }
  /// At most as many as there is room for.
  void set(const std::vector<T>& host) {
    EXPECT_EQ(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  std::vector<T> host() const {
    std::vector<T> copy(size_);
    EXPECT_EQ(cudaMemcpy(copy.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return copy;
  }

 private:
  size_t bytes() const { return size_ > 0 ? size_ * sizeof(T) : 1; }

  void* data_ = nullptr;
  size_t size_;
};

}  // namespace reprise::kernels::cuda

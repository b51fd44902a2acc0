// Memory of the current CUDA device, and of the host where the device reaches it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/cuda/device_status.h"

namespace reprise::kernels::cuda {

struct DeviceSpace {
  static cudaError_t allocate(void** data, size_t bytes) { return cudaMalloc(data, bytes); }
  static void free(void* data) { cudaFree(data); }
  // Streams do not wait for the default stream's work.
  static cudaError_t clear(void* data, size_t bytes) {
    const cudaError_t error = cudaMemset(data, 0, bytes);
    return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
  }
};
/// Page-locked; kernels may read and write it in place.
struct PinnedSpace {
  static cudaError_t allocate(void** data, size_t bytes) {
    return cudaHostAlloc(data, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
  }
  static void free(void* data) { cudaFreeHost(data); }
  static cudaError_t clear(void* data, size_t bytes) {
    std::memset(data, 0, bytes);
    return cudaSuccess;
  }
};

template <class T, class Space>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { Space::free(data_); }

  /// Room for count elements; what was there is lost when it grows. New memory is zero.
  Status reserve(size_t count, std::string_view what) {
    if (count <= size_) return {};
    Space::free(data_);
    data_ = nullptr;
    size_ = 0;
    void* data = nullptr;
    REPRISE_CUDA(Space::allocate(&data, count * sizeof(T)), what);
    data_ = static_cast<T*>(data);
    size_ = count;
    REPRISE_CUDA(Space::clear(data_, count * sizeof(T)), what);
    return {};
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<T> span() const { return {data_, size_}; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

template <class T>
using DeviceBuffer = Buffer<T, DeviceSpace>;
template <class T>
using PinnedBuffer = Buffer<T, PinnedSpace>;

/// Copies values to a buffer that is made large enough.
template <class T>
Status upload(std::span<const T> values, DeviceBuffer<T>& buffer, std::string_view what) {
  if (values.empty()) return {};
  if (auto status = buffer.reserve(values.size(), what); !status) return status;
  REPRISE_CUDA(
      cudaMemcpy(buffer.data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice), what);
  return {};
}

}  // namespace reprise::kernels::cuda

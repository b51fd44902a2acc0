// Device memory of the measuring programs of this folder, and what they fill it with.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "gpu/graph_timing.h"

template <class T>
class Array {
 public:
  explicit Array(size_t size) : size_(size) {
    void* data = nullptr;
    check(cudaMalloc(&data, size * sizeof(T)));
    check(cudaMemset(data, 0, size * sizeof(T)));
    data_ = static_cast<T*>(data);
  }
  explicit Array(const std::vector<T>& host) : Array(host.size()) {
    check(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* get() const { return data_; }
  size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// Variance 1, from 64 bits of a counter.
__device__ inline float noise(uint64_t i) {
  i = (i ^ i >> 31) * 0x7fb5d329728ea185ull;
  i = (i ^ i >> 27) * 0x81dadef4bc2dd44dull;
  return (static_cast<float>((i ^ i >> 33) & 0xffffff) * 0x1p-24f - 0.5f) * 3.4641f;
}

__global__ void fill(__nv_bfloat16* data, size_t count, uint64_t seed) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    data[i] = __float2bfloat16(noise(i + (seed << 40)));
  }
}

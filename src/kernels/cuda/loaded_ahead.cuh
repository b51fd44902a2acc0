// Values that a thread asks for in turn, the next of which are on their way.
#pragma once

#include <cstdint>

namespace reprise::kernels::cuda {

/// load(n, value) starts to load the n-th, or leaves it alone.
template <typename T, uint32_t kAhead, typename Load>
class LoadedAhead {
 public:
  __device__ explicit LoadedAhead(const Load& load) : load_(load) {
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) load_(i, values_[i]);
  }

  __device__ T next() {
    const T value = values_[0];
#pragma unroll
    for (uint32_t i = 1; i < kAhead; ++i) values_[i - 1] = values_[i];
    load_(kAhead + n_++, values_[kAhead - 1]);
    return value;
  }

 private:
  Load load_;
  T values_[kAhead] = {};
  uint32_t n_ = 0;
};

template <typename T, uint32_t kAhead, typename Load>
__device__ LoadedAhead<T, kAhead, Load> load_ahead(const Load& load) {
  return LoadedAhead<T, kAhead, Load>(load);
}

}  // namespace reprise::kernels::cuda

// Philox4x32-10 (Salmon et al. 2011): random numbers that are a function of a key and a counter.
#pragma once

#include <cstdint>

namespace reprise::kernels::cuda {

__device__ inline uint4 philox(uint4 counter, uint2 key) {
  for (int round = 0; round < 10; ++round) {
    constexpr uint32_t kFirst = 0xd2511f53u, kSecond = 0xcd9e8d57u;
    counter = {__umulhi(kSecond, counter.z) ^ counter.y ^ key.x, kSecond * counter.z,
               __umulhi(kFirst, counter.x) ^ counter.w ^ key.y, kFirst * counter.x};
    key = {key.x + 0x9e3779b9u, key.y + 0xbb67ae85u};
  }
  return counter;
}

/// In [0, 1): 53 bits of the block of counter (position, 0, 0, 0).
__device__ inline double uniform(uint64_t seed, uint32_t position) {
  const uint4 bits =
      philox({position, 0, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t wide = static_cast<uint64_t>(bits.y) << 32 | bits.x;
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

}  // namespace reprise::kernels::cuda

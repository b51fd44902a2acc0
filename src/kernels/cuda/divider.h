// Division by a number that the host knows, as a multiplication.
#pragma once

#include <cstdint>

#include "kernels/cuda/kv_tile.h"

namespace reprise::kernels::cuda {

/// Of numbers below 2^31.
class Divider {
 public:
  Divider() = default;  // by 1
  explicit Divider(uint32_t divisor) {
    while (divisor > uint64_t{1} << (shift_ - 31)) ++shift_;
    factor_ = static_cast<uint32_t>(((uint64_t{1} << shift_) + divisor - 1) / divisor);
  }
  REPRISE_HOST_DEVICE uint32_t quotient(uint32_t number) const {
    return static_cast<uint32_t>(uint64_t{number} * factor_ >> shift_);
  }

 private:
  uint32_t factor_ = 1u << 31, shift_ = 31;
};

}  // namespace reprise::kernels::cuda

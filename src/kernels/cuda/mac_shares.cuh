// How blocks share units that are laid end to end (stream-K, Osama et al. 2023).
#pragma once

#include "kernels/cuda/divider.h"
#include "kernels/cuda/kv_tile.h"

namespace reprise::kernels::cuda {

namespace mac {

// Equal shares; where units are few, only the first blocks have one.
class Shares {
 public:
  Shares() = default;
  REPRISE_HOST_DEVICE Shares(uint32_t units, uint32_t blocks)
      : units_(units), blocks_(units < blocks ? (units > 0 ? units : 1) : blocks) {
    each_ = units_ / blocks_;
    larger_ = units_ % blocks_;
  }
  REPRISE_HOST_DEVICE uint32_t begin(uint32_t block) const {
    const uint32_t at = block < blocks_ ? block : blocks_;
    return at * each_ + (at < larger_ ? at : larger_);
  }
  // The block whose share contains a unit.
  REPRISE_HOST_DEVICE uint32_t owner(uint32_t unit) const {
    const uint32_t in_larger = larger_ * (each_ + 1);
    return unit < in_larger ? unit / (each_ + 1) : larger_ + (unit - in_larger) / each_;
  }

 protected:
  REPRISE_HOST_DEVICE uint32_t each() const { return each_; }
  REPRISE_HOST_DEVICE uint32_t larger() const { return larger_; }

 private:
  uint32_t units_ = 0, blocks_ = 1, each_ = 0, larger_ = 0;  // the first shares are larger by one
};

// Shares that the host cut: owners are found without a division.
class FixedShares : public Shares {
 public:
  FixedShares() = default;
  FixedShares(uint32_t units, uint32_t blocks)
      : Shares(units, blocks), by_large_(each() + 1), by_small_(each() > 0 ? each() : 1) {}
  REPRISE_HOST_DEVICE uint32_t owner(uint32_t unit) const {
    const uint32_t in_larger = larger() * (each() + 1);
    return unit < in_larger ? by_large_.quotient(unit)
                            : larger() + by_small_.quotient(unit - in_larger);
  }

 private:
  Divider by_large_, by_small_;
};

}  // namespace mac

}  // namespace reprise::kernels::cuda

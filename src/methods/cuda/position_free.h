// Full attention to position-free keys on a CUDA device.
#pragma once

#include "attention/cuda/device_policy.h"

namespace reprise {

class DevicePositionFree : public DevicePolicy {
 public:
  bool position_free() const override { return true; }
  uint64_t keys_read(const DeviceRow& row) const override {
    return static_cast<uint64_t>(row.position) + 1;
  }
};

}  // namespace reprise

// Which policies run on a CUDA device.
#pragma once

#include <memory>

#include "attention/cuda/device_policy.h"
#include "attention/policy.h"

namespace reprise {

/// The device's side of a policy; null when it reads everything. kUnsupported names what is there.
Result<std::unique_ptr<DevicePolicy>> device_policy(const Policy& policy,
                                                    const ModelConfig& config);

}  // namespace reprise

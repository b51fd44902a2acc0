// The attention kernels of the first CUDA device.
#pragma once

#include <memory>

#include "bench/attention_kernels.h"

namespace reprise {

/// Errors: kDeviceUnavailable, also in builds without CUDA; kInvalidArgument for a KV type that
/// devices do not have.
Result<std::unique_ptr<AttentionKernels>> device_attention(const AttentionShape& shape);

}  // namespace reprise

// Identity of a model: what stored KV belongs to.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/tensor_source.h"

namespace reprise {

/// XXH3 of the configuration, the rotary tables, the tensor directory and every tensor.
uint64_t fingerprint(const ModelConfig& config, std::span<const RopeTable> ropes,
                     const TensorSource& source, ThreadPool& pool);

}  // namespace reprise

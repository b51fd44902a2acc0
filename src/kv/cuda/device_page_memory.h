// Pages in the memory of a CUDA device.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kv/page_memory.h"

namespace reprise {

/// One slab of the current device, zeroed. Copies are ordered by the stream, which outlives it.
Result<std::unique_ptr<PageMemory>> device_page_memory(size_t bytes, cudaStream_t stream);

}  // namespace reprise

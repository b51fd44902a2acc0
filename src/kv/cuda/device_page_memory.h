// Pages in the memory of CUDA devices.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "kv/page_memory.h"

namespace reprise {

/// A device's share of every page, one after the other.
struct DevicePages {
  kernels::cuda::DeviceBuffer<std::byte> memory;
  cudaStream_t stream = nullptr;  // orders copies; outlives the memory's use
};

/// One slab. Devices hold equal parts of a page of page_bytes, in their order: those of their KV
/// heads.
std::unique_ptr<PageMemory> device_page_memory(std::vector<DevicePages> devices, size_t page_bytes);

}  // namespace reprise

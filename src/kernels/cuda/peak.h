// A loop that shows how fast a CUDA device reads its memory, for the roof of `bench`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace reprise::kernels::cuda {

/// Buffers of read_all() are whole pieces; their number times rounds stays below 2^32.
inline constexpr size_t kReadPieceBytes = size_t{32} << 10;

/// Reads data [bytes], 16-byte aligned, rounds times by every multiprocessor, from L2 or memory.
/// Adds the sum of its 32-bit words over all rounds, modulo 2^32, to *sum of the device.
cudaError_t read_all(const void* data, size_t bytes, uint32_t rounds, uint32_t* sum,
                     cudaStream_t stream);

}  // namespace reprise::kernels::cuda

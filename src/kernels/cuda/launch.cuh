// What launches depend on, and launches that may begin while the kernel before them still runs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace reprise::kernels::cuda {

struct DeviceLimits {
  uint32_t multiprocessors = 1;
  size_t shared_bytes = 0;  // that a block may ask for
};

inline DeviceLimits device_limits() {
  int device = 0, count = 1, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return {static_cast<uint32_t>(count), static_cast<size_t>(bytes)};
}

/// Lets the kernel ask for all the dynamic shared memory that its own leaves. Always the same
/// limit, whatever a launch needs: threads of a process share the kernel, and must not lower it.
template <typename... Params>
cudaError_t allow_all_shared(void (*kernel)(Params...)) {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
  if (status != cudaSuccess) return status;
  const size_t bytes = device_limits().shared_bytes - attributes.sharedSizeBytes;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

/// Whether the kernel was compiled for warpgroup products, which only devices of 9.0 have.
template <typename... Params>
bool has_wgmma(void (*kernel)(Params...)) {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  cudaFuncAttributes attributes;
  return major == 9 && minor == 0 && cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
         attributes.ptxVersion >= 90;
}

/// Multiprocessors keep all of their shared memory for blocks, whatever a launch needs of it: one
/// that is cut for the launch before would have to be empty before the next can begin there.
inline cudaLaunchAttribute most_shared() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attribute.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  return attribute;
}

/// Programmatic dependent launch, where the device has it: the kernel must call
/// wait_for_kernels_before() (hopper.cuh) before it touches what others write.
template <typename... Params, typename... Args>
cudaError_t launch_overlapped(void (*kernel)(Params...), dim3 grid, uint32_t threads,
                              size_t shared_bytes, cudaStream_t stream, const Args&... args) {
  int device = 0, major = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  const cudaError_t status =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attributes[2] = {most_shared(), {}};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = major == 9 ? 2 : 1;  // later devices run the code of 8.0, which does not wait
  return cudaLaunchKernelEx(&config, kernel, args...);
}

template <typename... Params, typename... Args>
cudaError_t launch_overlapped(void (*kernel)(Params...), dim3 grid, uint32_t threads,
                              cudaStream_t stream, const Args&... args) {
  return launch_overlapped(kernel, grid, threads, size_t{0}, stream, args...);
}

}  // namespace reprise::kernels::cuda

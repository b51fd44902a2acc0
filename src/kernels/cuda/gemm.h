// Prefill products with weights on a CUDA device: bf16 tensor cores through cuBLASLt.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <span>

#include "kernels/cuda/device_matrix.h"
#include "reprise/error.h"

namespace reprise::kernels::cuda {

enum class GemmOut : uint8_t { kF32, kBF16 };

struct GemmArgs {
  const DeviceMatrix* weight = nullptr;  // [n, k]
  const __nv_bfloat16* x = nullptr;      // [rows, k]
  uint32_t rows = 0;
  void* out = nullptr;  // [rows, out_stride], first n columns written
  GemmOut type = GemmOut::kF32;
  size_t out_stride = 0;        // elements
  const float* bias = nullptr;  // [n] or null; rounded to bf16 where out is
  bool accumulate = false;      // add to out; F32 only
};

/// Quantised, F16 and F32 weights are expanded to bf16 slice by slice into the workspace; BF16 ones
/// are read where they are. Of one stream at a time.
class Gemm {
 public:
  /// kDeviceUnavailable when the library is not on this machine (says how to get it).
  static Result<std::unique_ptr<Gemm>> create(size_t workspace_bytes);
  ~Gemm();
  /// kOutOfMemory; kDeviceUnavailable with the library's status.
  Status multiply(const GemmArgs& args, cudaStream_t stream);
  /// One after the other; two neighbours that alone leave much of the device idle at once, where
  /// their BF16 weights have one shape, neither has a bias, and outputs lie as the weights do.
  Status multiply(std::span<const GemmArgs> products, cudaStream_t stream);

  struct Impl;

 private:
  explicit Gemm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise::kernels::cuda

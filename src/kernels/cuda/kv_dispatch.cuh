// Kernels are compiled for each KV type and head size; a call picks one.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/cuda/kv_tile.h"

namespace reprise::kernels::cuda {

/// f(head size as a constant); cudaErrorNotSupported for one that kernels do not have.
template <typename F>
cudaError_t with_head_dim(uint32_t head_dim, F&& f) {
  switch (head_dim) {
    case 64:
      return f(std::integral_constant<uint32_t, 64>());
    case 96:
      return f(std::integral_constant<uint32_t, 96>());
    case 128:
      return f(std::integral_constant<uint32_t, 128>());
    case 256:
      return f(std::integral_constant<uint32_t, 256>());
    default:
      return cudaErrorNotSupported;
  }
}

/// f(type as a constant).
template <typename F>
cudaError_t with_kv_type(KvType type, F&& f) {
  switch (type) {
    case KvType::kBF16:
      return f(std::integral_constant<KvType, KvType::kBF16>());
    case KvType::kF16:
      return f(std::integral_constant<KvType, KvType::kF16>());
    case KvType::kFP8:
      return f(std::integral_constant<KvType, KvType::kFP8>());
    case KvType::kF32:
      return cudaErrorNotSupported;
  }
  return cudaErrorInvalidValue;
}

/// f(type as a constant, head size as a constant).
template <typename F>
cudaError_t with_kv_shape(KvType type, uint32_t head_dim, F&& f) {
  return with_kv_type(type, [&](auto constant) {
    return with_head_dim(head_dim, [&](auto dim) { return f(constant, dim); });
  });
}

}  // namespace reprise::kernels::cuda

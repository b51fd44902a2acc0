// Names of the KV element types that devices have. Not for .cu files (device_status.h).
#pragma once

#include <array>
#include <string_view>

#include "kernels/cuda/kv_tile.h"
#include "reprise/error.h"

namespace reprise::kernels::cuda {

struct NamedKvType {
  std::string_view name;
  KvType type;
};

/// bf16 first, the smallest last.
inline constexpr std::array kNamedKvTypes{NamedKvType{"bf16", KvType::kBF16},
                                          NamedKvType{"f16", KvType::kF16},
                                          NamedKvType{"fp8", KvType::kFP8}};

inline Result<KvType> device_kv_type(std::string_view name) {
  for (const NamedKvType& named : kNamedKvTypes) {
    if (named.name == name) return named.type;
  }
  return fail(ErrorCode::kUnsupported,
              "--kv-type {} is not there with --device cuda; choose bf16, f16 or fp8 (f32 comes "
              "with --precision f32)",
              name);
}

}  // namespace reprise::kernels::cuda

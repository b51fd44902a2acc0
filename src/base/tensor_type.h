// Element types of stored tensors, with the sizes of their blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

enum class TensorType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL
};

struct TensorTypeInfo {
  std::string_view name;  ///< as GGUF tools print it, e.g. "Q4_1"
  uint32_t block;         ///< elements per block
  uint32_t block_bytes;   ///< bytes per block
};

const TensorTypeInfo& tensor_type_info(TensorType type);

/// A named tensor whose bytes lie in a mapped file; validated: bytes.size() matches type and shape.
struct TensorView {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<uint64_t> shape;       ///< row-major, outermost first; the last is contiguous
  std::span<const std::byte> bytes;  ///< product(shape) / block * block_bytes bytes
};

}  // namespace reprise

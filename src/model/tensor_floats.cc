#include "model/tensor_floats.h"

#include <cstring>

#include "base/float16.h"

namespace reprise {
namespace {

template <class Stored>
std::vector<float> widen(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, &bytes[i * sizeof(Stored)], sizeof(Stored));
    values[i] = to_float(stored);
  }
  return values;
}

}  // namespace

Result<std::vector<float>> tensor_floats(const TensorView& tensor) {
  switch (tensor.type) {
    case TensorType::kF32: {
      std::vector<float> values(tensor.bytes.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
      return values;
    }
    case TensorType::kF16:
      return widen<F16>(tensor.bytes);
    case TensorType::kBF16:
      return widen<Bf16>(tensor.bytes);
    default:
      return fail(ErrorCode::kUnsupportedType, "tensor {} is {}; F32, F16 or BF16 is needed here",
                  tensor.name, tensor_type_info(tensor.type).name);
  }
}

}  // namespace reprise

// Small stored vectors (norms, biases, rotary factors) as floats.
#pragma once

#include <vector>

#include "base/tensor_type.h"
#include "reprise/error.h"

namespace reprise {

/// Elements of an F32, F16 or BF16 tensor in storage order; kUnsupportedType for other types.
Result<std::vector<float>> tensor_floats(const TensorView& tensor);

}  // namespace reprise

#include "base/tensor_type.h"

#include <array>

namespace reprise {

const TensorTypeInfo& tensor_type_info(TensorType type) {
  static constexpr std::array<TensorTypeInfo, 14> kInfo{{{"F32", 1, 4},
                                                         {"F16", 1, 2},
                                                         {"BF16", 1, 2},
                                                         {"Q8_0", 32, 34},
                                                         {"Q4_0", 32, 18},
                                                         {"Q4_1", 32, 20},
                                                         {"Q5_0", 32, 22},
                                                         {"Q5_1", 32, 24},
                                                         {"Q2_K", 256, 84},
                                                         {"Q3_K", 256, 110},
                                                         {"Q4_K", 256, 144},
                                                         {"Q5_K", 256, 176},
                                                         {"Q6_K", 256, 210},
                                                         {"IQ4_NL", 32, 18}}};
  return kInfo[static_cast<size_t>(type)];
}

}  // namespace reprise

#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu.h"
#include "kernels/softmax_isa.h"

namespace reprise::kernels {

float softmax_ref(float* x, size_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float top = -kInfinity;
  for (size_t i = 0; i < n; ++i) top = std::max(top, x[i]);
  if (top == -kInfinity) {
    std::fill_n(x, n, 0.0f);
    return -kInfinity;
  }
  double total = 0.0;
  for (size_t i = 0; i < n; ++i) total += x[i] = std::exp(x[i] - top);
  const auto inverse = static_cast<float>(1.0 / total);
  for (size_t i = 0; i < n; ++i) x[i] *= inverse;
  return top + static_cast<float>(std::log(total));
}

float softmax(float* x, size_t n) {
#if defined(__x86_64__)
  if (cpu_isa() >= Isa::kAvx512) return softmax_avx512(x, n);
  if (cpu_isa() >= Isa::kAvx2) return softmax_avx2(x, n);
#endif
  return softmax_ref(x, n);
}

}  // namespace reprise::kernels

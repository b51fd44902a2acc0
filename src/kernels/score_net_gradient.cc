#include "kernels/score_net_gradient.h"

#include "kernels/cpu.h"
#include "kernels/score_net_gradient_body.h"
#include "kernels/score_net_gradient_isa.h"

namespace reprise::kernels {

void score_net_forward(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                       ScoreNetScratch& scratch, float* forecast) {
  scratch.inner.assign((rows + 2) * (columns + 2) * kNetInner, 0.0f);
  scratch.outer.resize(rows * columns * kNetOuter);
#if defined(__x86_64__)
  if (cpu_isa() >= Isa::kAvx512) {
    return score_net_forward_avx512(net, window, rows, columns, scratch, forecast);
  }
#endif
  forward_body(net, window, rows, columns, scratch.inner.data(), scratch.outer.data(), forecast);
}

void score_net_backward(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                        const float* slope, ScoreNetScratch& scratch, ScoreNet& gradient) {
  scratch.inner_slope.assign((rows + 2) * (columns + 2) * kNetInner, 0.0f);
#if defined(__x86_64__)
  if (cpu_isa() >= Isa::kAvx512) {
    return score_net_backward_avx512(net, window, rows, columns, slope, scratch, gradient);
  }
#endif
  backward_body(net, window, rows, columns, slope, scratch, scratch.inner_slope.data(), gradient);
}

}  // namespace reprise::kernels

#include "kernels/score_net_gradient_body.h"
#include "kernels/score_net_gradient_isa.h"

namespace reprise::kernels {

void score_net_forward_avx512(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                              ScoreNetScratch& scratch, float* forecast) {
  forward_body(net, window, rows, columns, scratch.inner.data(), scratch.outer.data(), forecast);
}

void score_net_backward_avx512(const ScoreNet& net, const float* window, size_t rows,
                               size_t columns, const float* slope, ScoreNetScratch& scratch,
                               ScoreNet& gradient) {
  backward_body(net, window, rows, columns, slope, scratch, scratch.inner_slope.data(), gradient);
}

}  // namespace reprise::kernels

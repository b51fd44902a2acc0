// Gradient kernels of one instruction set each; chosen in score_net_gradient.cc.
#pragma once

#include "kernels/score_net_gradient.h"

namespace reprise::kernels {

void score_net_forward_avx512(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                              ScoreNetScratch& scratch, float* forecast);
void score_net_backward_avx512(const ScoreNet& net, const float* window, size_t rows,
                               size_t columns, const float* slope, ScoreNetScratch& scratch,
                               ScoreNet& gradient);

}  // namespace reprise::kernels

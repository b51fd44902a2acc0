// Score network kernels of one instruction set each; chosen in score_net.cc.
#pragma once

#include "kernels/score_net.h"

namespace reprise::kernels {

void score_net_inner_avx2(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                          float* out);
void score_net_inner_avx512(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                            float* out);

void score_net_project_ref(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                           float* out);
void score_net_project_avx2(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                            float* out);
void score_net_project_avx512(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                              float* out);

}  // namespace reprise::kernels

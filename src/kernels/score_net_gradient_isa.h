// Gradient loops of one instruction set each; chosen in score_net_gradient.cc.
#pragma once

#include <cstddef>

#include "kernels/score_net_gradient.h"

namespace reprise::kernels {

/// As score_net_forward() and score_net_backward(), with room in the scratch.
struct ScoreNetLoops {
  void (*forward)(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                  ScoreNetScratch& scratch, float* forecast);
  void (*backward)(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                   const float* slope, ScoreNetScratch& scratch, ScoreNet& gradient);
};

extern const ScoreNetLoops kScoreNetLoopsAvx2, kScoreNetLoopsAvx512;

}  // namespace reprise::kernels

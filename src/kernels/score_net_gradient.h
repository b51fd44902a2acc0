// Gradients of the score network, for training it.
#pragma once

#include <vector>

#include "kernels/score_net.h"

namespace reprise::kernels {

/// Activations of one sample; kept from call to call, so that nothing is allocated again.
struct ScoreNetScratch {
  std::vector<float> inner;        // [rows + 2, columns + 2, inner], zeros around
  std::vector<float> outer;        // [rows, columns, outer] before the ReLU
  std::vector<float> inner_slope;  // of the loss, like inner
  std::vector<float> outer_slope;  // [rows + 2, columns + 2, outer], zeros around
};

/// forecast[c] = mean over rows of the projections + bias3, of a window [rows, columns] of scores.
void score_net_forward(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                       ScoreNetScratch& scratch, float* forecast);
/// Adds the slope of a loss by every weight to gradient. slope: [columns] of the loss by the
/// forecast; scratch as the forward pass of the same window left it.
void score_net_backward(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                        const float* slope, ScoreNetScratch& scratch, ScoreNet& gradient);

}  // namespace reprise::kernels

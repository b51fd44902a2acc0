// The network of AttentionPredictor (arXiv 2502.04077, section 4): two 3x3 convolutions over rows
// (time) and columns (blocks) of attention scores, a mean over time and a sum of channels. What is
// behind the ReLU of the second convolution is linear, so that a row's part in the result can be
// kept: rows are projected one at a time.
#pragma once

#include <array>
#include <cstddef>

namespace reprise::kernels {

inline constexpr size_t kNetInner = 16, kNetOuter = 32;  // channels behind the convolutions

struct ScoreNet {
  std::array<float, 3 * 3 * kNetInner> conv1{};  // [row][column][inner]
  std::array<float, kNetInner> bias1{};
  std::array<float, 3 * 3 * kNetInner * kNetOuter> conv2{};  // [row][column][inner][outer]
  std::array<float, kNetOuter> bias2{};
  std::array<float, kNetOuter> conv3{};
  float bias3 = 0.0f;
};

/// Activations behind the first convolution of one row. in: the row before, the row and the row
/// after, each [columns] or null (zeros). out: [columns + 2, inner] with zeros in the first and the
/// last column, as the second convolution pads.
void score_net_inner(const ScoreNet& net, const float* const (&in)[3], size_t columns, float* out);

/// out[c] = conv3 . relu(conv2 + bias2) of one row. in: inner activations of the row before, the
/// row and the row after, each [columns + 2, inner] or null (zeros).
void score_net_project(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                       float* out);

}  // namespace reprise::kernels

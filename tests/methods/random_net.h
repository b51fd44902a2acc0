// A network for tests that is not trained.
#pragma once

#include <cmath>
#include <random>

#include "methods/attention_predictor/network.h"

namespace reprise::test {

/// An outer weight with which a network adds a few percent to averages of a twentieth.
inline constexpr float kFaint = 0.02f;

/// outer: what weights of the last convolution are multiplied by.
inline ForecastNet random_net(uint32_t rows, bool published, float outer = 1.0f) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  ForecastNet net;
  net.rows = rows;
  net.published = published;
  for (float& x : net.net.conv1) x = normal(random);
  for (float& x : net.net.bias1) x = normal(random);
  for (float& x : net.net.conv2) x = normal(random);
  for (float& x : net.net.bias2) x = normal(random);
  for (float& x : net.net.conv3) x = outer * normal(random);
  net.net.bias3 = 0.25f;
  return net;
}

/// A network with the magnitudes of another one's weights: what errors of its sums are in
/// proportion to. Without biases: what comes of inputs.
inline ForecastNet magnitudes_of(const ForecastNet& net, bool biases = true) {
  ForecastNet made = net;
  const auto all = [](auto& values) {
    for (float& x : values) x = std::abs(x);
  };
  all(made.net.conv1);
  all(made.net.conv2);
  all(made.net.conv3);
  all(made.net.bias1);
  all(made.net.bias2);
  made.net.bias3 = std::abs(net.net.bias3);
  if (biases) return made;
  made.net.bias1 = {};
  made.net.bias2 = {};
  made.net.bias3 = 0.0f;
  return made;
}

/// What f16 operands do to a device's forecast, in proportion to what comes of inputs: inputs, what
/// they change behind the first convolution, and both ones' weights are rounded.
inline constexpr double kHalfError = 4.1 * 0x1p-11;

}  // namespace reprise::test

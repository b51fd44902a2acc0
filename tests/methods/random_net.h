// A network for tests that is not trained.
#pragma once

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

}  // namespace reprise::test

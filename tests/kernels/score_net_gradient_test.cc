// Gradients of the score network against finite differences.
#include "kernels/score_net_gradient.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/attention_case.h"

namespace reprise::kernels {
namespace {

using Flat = std::array<float, sizeof(ScoreNet) / sizeof(float)>;

ScoreNet random_net(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  Flat values;
  for (float& x : values) x = normal(random);
  return std::bit_cast<ScoreNet>(values);
}

// A loss that is linear in the forecast of a window.
struct Case {
  Case(size_t own_rows, size_t own_columns) : rows(own_rows), columns(own_columns) {
    std::mt19937 random(2);
    std::uniform_real_distribution<float> share(0.0f, 1.0f);
    for (size_t i = 0; i < rows * columns; ++i) window.push_back(share(random));
    for (size_t c = 0; c < columns; ++c) weight.push_back(share(random) - 0.5f);
    if (columns > 3) weight[3] = 0.0f;
  }
  double loss(const ScoreNet& net) {
    std::vector<float> forecast(columns);
    score_net_forward(net, window.data(), rows, columns, scratch, forecast.data());
    double sum = 0.0;
    for (size_t c = 0; c < columns; ++c) sum += double{weight[c]} * forecast[c];
    return sum;
  }
  // Slopes that a gradient was given beside what it had.
  Flat slopes(const ScoreNet& net) {
    loss(net);
    ScoreNet gradient;
    gradient.bias3 = 1.0f;
    score_net_backward(net, window.data(), rows, columns, weight.data(), scratch, gradient);
    gradient.bias3 -= 1.0f;
    return std::bit_cast<Flat>(gradient);
  }

  size_t rows, columns;
  std::vector<float> window, weight;
  ScoreNetScratch scratch;
};

TEST(ScoreNetGradient, EqualsFiniteDifferences) {
  for (const Isa isa : machine_isas()) {
    const IsaScope scope(isa);
    for (const size_t columns : {1, 4, 9}) {
      SCOPED_TRACE(std::string(isa_name(isa)) + ", columns " + std::to_string(columns));
      Case window(6, columns);
      const ScoreNet net = random_net(1);
      const Flat slopes = window.slopes(net);
      const float step = 2e-3f;
      int far = 0;
      for (size_t w = 0; w < slopes.size(); w += 1 + w / 40) {
        auto more = std::bit_cast<Flat>(net), less = more;
        more[w] += step;
        less[w] -= step;
        const double difference = (window.loss(std::bit_cast<ScoreNet>(more)) -
                                   window.loss(std::bit_cast<ScoreNet>(less))) /
                                  (2.0 * step);
        // A step may cross the kink of a ReLU; then the difference is off by a part of one slope.
        far += std::fabs(difference - slopes[w]) > 2e-3 + 0.02 * std::fabs(difference) ? 1 : 0;
      }
      EXPECT_LE(far, 4);
    }
  }
}

}  // namespace
}  // namespace reprise::kernels

// The score network against loops in double.
#include "kernels/score_net.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/attention_case.h"

namespace reprise::kernels {
namespace {

ScoreNet random_net(std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 0.3f);
  ScoreNet net;
  for (float& x : net.conv1) x = normal(random);
  for (float& x : net.bias1) x = normal(random);
  for (float& x : net.conv2) x = normal(random);
  for (float& x : net.bias2) x = normal(random);
  for (float& x : net.conv3) x = normal(random);
  return net;
}

TEST(ScoreNet, EqualsLoopsInDoubleAtEveryWidthAndEdge) {
  for (const Isa isa : machine_isas()) {
    const IsaScope scope(isa);
    std::mt19937 random(3);
    const ScoreNet net = random_net(random);
    std::uniform_real_distribution<float> share(0.0f, 1.0f);
    for (const size_t columns : {1, 2, 3, 7, 8, 9, 31, 64, 77}) {
      for (const int absent : {-1, 0, 2}) {  // rows before and after a window are zeros
        std::vector<float> rows(3 * columns), inner(3 * (columns + 2) * kNetInner), got(columns);
        for (float& x : rows) x = share(random);
        const float* all[3];
        for (int r = 0; r < 3; ++r) {
          const float* in[3];
          for (int i = 0; i < 3; ++i) {
            const int row = r + i - 1;
            in[i] = row < 0 || row > 2 || row == absent ? nullptr
                                                        : &rows[static_cast<size_t>(row) * columns];
          }
          float* to = &inner[static_cast<size_t>(r) * (columns + 2) * kNetInner];
          score_net_inner(net, in, columns, to);
          all[r] = r == absent ? nullptr : to;
        }
        score_net_project(net, all, columns, got.data());

        const auto input = [&](int row, int column) -> double {
          if (row < 0 || row > 2 || row == absent || column < 0) return 0.0;
          if (column >= static_cast<int>(columns)) return 0.0;
          return rows[static_cast<size_t>(row) * columns + static_cast<size_t>(column)];
        };
        const auto hidden = [&](int row, int column, size_t c) -> double {
          if (row < 0 || row > 2 || row == absent || column < 0) return 0.0;
          if (column >= static_cast<int>(columns)) return 0.0;
          double sum = net.bias1[c];
          size_t tap = 0;
          for (int dr = 0; dr < 3; ++dr) {
            for (int dc = 0; dc < 3; ++dc, ++tap) {
              sum += double{net.conv1[tap * kNetInner + c]} * input(row + dr - 1, column + dc - 1);
            }
          }
          return std::max(0.0, sum);
        };
        for (size_t column = 0; column < columns; ++column) {
          double want = 0.0, size = 0.0;
          for (size_t o = 0; o < kNetOuter; ++o) {
            double sum = net.bias2[o];
            for (int dr = 0; dr < 3; ++dr) {
              for (int dc = 0; dc < 3; ++dc) {
                for (size_t c = 0; c < kNetInner; ++c) {
                  const auto tap = (static_cast<size_t>(dr * 3 + dc) * kNetInner + c) * kNetOuter;
                  sum +=
                      double{net.conv2[tap + o]} * hidden(dr, static_cast<int>(column) + dc - 1, c);
                }
              }
            }
            want += double{net.conv3[o]} * std::max(0.0, sum);
            size += std::fabs(double{net.conv3[o]}) * std::max(1.0, std::fabs(sum));
          }
          EXPECT_NEAR(got[column], want, 4e-6 * size) << isa_name(isa) << " " << columns;
        }
      }
    }
  }
}

}  // namespace
}  // namespace reprise::kernels

#include "kernels/score_net.h"

#include <algorithm>

#include "kernels/cpu.h"
#include "kernels/score_net_isa.h"
#include "kernels/score_net_row.h"

namespace reprise::kernels {

void score_net_project_ref(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                           float* out) {
  constexpr size_t kInputs = 3 * kNetInner;  // of three columns, side by side
  for (size_t column = 0; column < columns; ++column) {
    std::array<float, kNetOuter> sums = net.bias2;
    for (size_t row = 0; row < 3; ++row) {
      if (in[row] == nullptr) continue;
      const float* values = in[row] + column * kNetInner;
      const float* weights = &net.conv2[row * kInputs * kNetOuter];
      for (size_t i = 0; i < kInputs; ++i, weights += kNetOuter) {
        for (size_t c = 0; c < kNetOuter; ++c) sums[c] += weights[c] * values[i];
      }
    }
    out[column] = 0.0f;
    for (size_t c = 0; c < kNetOuter; ++c) out[column] += net.conv3[c] * std::max(0.0f, sums[c]);
  }
}

void score_net_inner(const ScoreNet& net, const float* const (&in)[3], size_t columns, float* out) {
  form<inner_row, score_net_inner_avx2, score_net_inner_avx512>()(net, in, columns, out);
}

void score_net_project(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                       float* out) {
  form<score_net_project_ref, score_net_project_avx2, score_net_project_avx512>()(net, in, columns,
                                                                                  out);
}

}  // namespace reprise::kernels

// The loops of score_net_gradient.h, compiled once for every instruction set: channels are what
// compilers make vectors of. Everything is static: see simd_avx512.h.
#pragma once

#include "kernels/score_net_gradient.h"

namespace reprise::kernels {

static constexpr size_t kNetTaps = 3 * 3;

// Where the inner channels of a row and a column stand; -1 is the frame of zeros.
static inline size_t inner_at(size_t row, size_t column, size_t columns) {
  return (row * (columns + 2) + column) * kNetInner;
}

static void forward_body(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                         float* inner, float* outer, float* forecast) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      float* to = inner + inner_at(r + 1, c + 1, columns);
      for (size_t i = 0; i < kNetInner; ++i) to[i] = net.bias1[i];
      for (size_t tap = 0; tap < kNetTaps; ++tap) {
        const size_t row = r + tap / 3, column = c + tap % 3;  // one more than what is read
        if (row == 0 || row > rows || column == 0 || column > columns) continue;
        const float value = window[(row - 1) * columns + column - 1];
        for (size_t i = 0; i < kNetInner; ++i) to[i] += value * net.conv1[tap * kNetInner + i];
      }
      for (size_t i = 0; i < kNetInner; ++i) to[i] = to[i] > 0.0f ? to[i] : 0.0f;
    }
  }
  for (size_t c = 0; c < columns; ++c) forecast[c] = 0.0f;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      float sums[kNetOuter];
      for (size_t o = 0; o < kNetOuter; ++o) sums[o] = net.bias2[o];
      for (size_t tap = 0; tap < kNetTaps; ++tap) {
        const float* from = inner + inner_at(r + tap / 3, c + tap % 3, columns);
        const float* weights = net.conv2.data() + tap * kNetInner * kNetOuter;
        for (size_t i = 0; i < kNetInner; ++i) {
          for (size_t o = 0; o < kNetOuter; ++o) sums[o] += from[i] * weights[i * kNetOuter + o];
        }
      }
      float* to = outer + (r * columns + c) * kNetOuter;
      float part = 0.0f;
      for (size_t o = 0; o < kNetOuter; ++o) {
        to[o] = sums[o];
        part += net.conv3[o] * (sums[o] > 0.0f ? sums[o] : 0.0f);
      }
      forecast[c] += part;
    }
  }
  for (size_t c = 0; c < columns; ++c) {
    forecast[c] = forecast[c] / static_cast<float>(rows) + net.bias3;
  }
}

// Behind the mean over time, of one row and column: adds what reaches conv2, and the slopes of the
// inner channels around it. by_outer: conv2 as [tap][outer][inner].
static inline void backward_outer(const ScoreNet& net, const float* by_outer, const float* outer,
                                  float slope, const float* inner, float* inner_slope, size_t r,
                                  size_t c, size_t columns, ScoreNet& gradient) {
  float slopes[kNetOuter];
  for (size_t o = 0; o < kNetOuter; ++o) {
    const float active = outer[o] > 0.0f ? slope : 0.0f;
    slopes[o] = active * net.conv3[o];
    gradient.conv3[o] += active * outer[o];
    gradient.bias2[o] += slopes[o];
  }
  for (size_t tap = 0; tap < kNetTaps; ++tap) {
    const size_t at = inner_at(r + tap / 3, c + tap % 3, columns);
    float* weights = gradient.conv2.data() + tap * kNetInner * kNetOuter;
    for (size_t i = 0; i < kNetInner; ++i) {
      const float value = inner[at + i];
      for (size_t o = 0; o < kNetOuter; ++o) weights[i * kNetOuter + o] += value * slopes[o];
    }
    const float* back = by_outer + tap * kNetInner * kNetOuter;
    float sums[kNetInner] = {};
    for (size_t o = 0; o < kNetOuter; ++o) {
      for (size_t i = 0; i < kNetInner; ++i) sums[i] += slopes[o] * back[o * kNetInner + i];
    }
    for (size_t i = 0; i < kNetInner; ++i) inner_slope[at + i] += sums[i];
  }
}

static void backward_body(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                          const float* slope, const ScoreNetScratch& scratch, float* inner_slope,
                          ScoreNet& gradient) {
  float by_outer[kNetTaps * kNetInner * kNetOuter];
  for (size_t tap = 0; tap < kNetTaps; ++tap) {
    for (size_t i = 0; i < kNetInner; ++i) {
      for (size_t o = 0; o < kNetOuter; ++o) {
        by_outer[(tap * kNetOuter + o) * kNetInner + i] =
            net.conv2[(tap * kNetInner + i) * kNetOuter + o];
      }
    }
  }
  for (size_t c = 0; c < columns; ++c) {
    gradient.bias3 += slope[c];
    if (slope[c] == 0.0f) continue;
    const float share = slope[c] / static_cast<float>(rows);
    for (size_t r = 0; r < rows; ++r) {
      backward_outer(net, by_outer, scratch.outer.data() + (r * columns + c) * kNetOuter, share,
                     scratch.inner.data(), inner_slope, r, c, columns, gradient);
    }
  }
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const size_t at = inner_at(r + 1, c + 1, columns);
      float slopes[kNetInner];
      for (size_t i = 0; i < kNetInner; ++i) {
        slopes[i] = scratch.inner[at + i] > 0.0f ? inner_slope[at + i] : 0.0f;
        gradient.bias1[i] += slopes[i];
      }
      for (size_t tap = 0; tap < kNetTaps; ++tap) {
        const size_t row = r + tap / 3, column = c + tap % 3;
        if (row == 0 || row > rows || column == 0 || column > columns) continue;
        const float value = window[(row - 1) * columns + column - 1];
        for (size_t i = 0; i < kNetInner; ++i) {
          gradient.conv1[tap * kNetInner + i] += value * slopes[i];
        }
      }
    }
  }
}

}  // namespace reprise::kernels

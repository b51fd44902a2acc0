// The loops of score_net_gradient.h, compiled once for every instruction set: channels are what
// vectors are made of. Everything is static: see simd_avx512.h.
#pragma once

#include "kernels/score_net_gradient.h"
#include "kernels/score_net_row.h"

namespace reprise::kernels {

static constexpr size_t kNetTaps = 3 * 3;

// Where the inner channels of a row and a column stand; -1 is the frame of zeros.
static inline size_t inner_at(size_t row, size_t column, size_t columns) {
  return (row * (columns + 2) + column) * kNetInner;
}

// The second convolution of N neighbouring columns of a row.
template <size_t N>
static inline void forward_outer(const ScoreNet& net, const float* inner, size_t r, size_t c,
                                 size_t columns, float* outer) {
  constexpr size_t kVectors = kNetOuter / kNetLanes;
  NetLanes sums[N][kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    for (size_t n = 0; n < N; ++n) sums[n][v] = load_lanes(net.bias2.data() + v * kNetLanes);
  }
  for (size_t tap = 0; tap < kNetTaps; ++tap) {
    const float* from = inner + inner_at(r + tap / 3, c + tap % 3, columns);
    const float* weights = net.conv2.data() + tap * kNetInner * kNetOuter;
    for (size_t i = 0; i < kNetInner; ++i, weights += kNetOuter) {
      for (size_t v = 0; v < kVectors; ++v) {
        const NetLanes own = load_lanes(weights + v * kNetLanes);
        for (size_t n = 0; n < N; ++n) sums[n][v] += from[n * kNetInner + i] * own;
      }
    }
  }
  for (size_t n = 0; n < N; ++n) {
    float* to = outer + (r * columns + c + n) * kNetOuter;
    for (size_t v = 0; v < kVectors; ++v) store_lanes(to + v * kNetLanes, sums[n][v]);
  }
}

static void forward_body(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                         ScoreNetScratch& scratch, float* forecast) {
  constexpr size_t kTogether = 2;
  float* const inner = scratch.inner.data();
  float* const outer = scratch.outer.data();
  for (size_t r = 0; r < rows; ++r) {
    const auto row = [&](size_t at) { return at < rows ? window + at * columns : nullptr; };
    inner_row(net, {row(r - 1), row(r), row(r + 1)}, columns, inner + inner_at(r + 1, 0, columns));
  }
  for (size_t c = 0; c < columns; ++c) forecast[c] = 0.0f;
  for (size_t r = 0; r < rows; ++r) {
    size_t c = 0;
    for (; c + kTogether <= columns; c += kTogether) {
      forward_outer<kTogether>(net, inner, r, c, columns, outer);
    }
    for (; c < columns; ++c) forward_outer<1>(net, inner, r, c, columns, outer);
    for (c = 0; c < columns; ++c) {
      const float* own = outer + (r * columns + c) * kNetOuter;
      for (size_t o = 0; o < kNetOuter; ++o) {
        forecast[c] += net.conv3[o] * (own[o] > 0.0f ? own[o] : 0.0f);
      }
    }
  }
  for (size_t c = 0; c < columns; ++c) {
    forecast[c] = forecast[c] / static_cast<float>(rows) + net.bias3;
  }
}

// Where the outer channels of a row and a column stand; -1 is the frame of zeros.
static inline size_t outer_at(size_t row, size_t column, size_t columns) {
  return (row * (columns + 2) + column) * kNetOuter;
}

// Behind the mean over time: slopes of the second convolution, and what reaches all that follows.
static inline void backward_outer(const ScoreNet& net, const float* outer, size_t rows,
                                  size_t columns, const float* slope, float* outer_slope,
                                  ScoreNet& gradient) {
  for (size_t c = 0; c < columns; ++c) gradient.bias3 += slope[c];
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const float share = slope[c] / static_cast<float>(rows);
      const float* from = outer + (r * columns + c) * kNetOuter;
      float* to = outer_slope + outer_at(r + 1, c + 1, columns);
      for (size_t o = 0; o < kNetOuter; ++o) {
        const float active = from[o] > 0.0f ? share : 0.0f;
        to[o] = active * net.conv3[o];
        gradient.conv3[o] += active * from[o];
        gradient.bias2[o] += to[o];
      }
    }
  }
}

// What reaches the weights of a tap of the second convolution: all outer channels of two inner ones
// at a time stay in registers.
static inline void backward_conv2(size_t tap, const float* inner, const float* outer_slope,
                                  size_t rows, size_t columns, ScoreNet& gradient) {
  constexpr size_t kVectors = kNetOuter / kNetLanes, kTogether = 2;
  for (size_t i = 0; i < kNetInner; i += kTogether) {
    float* weights = gradient.conv2.data() + (tap * kNetInner + i) * kNetOuter;
    NetLanes sums[kTogether][kVectors] = {};
    for (size_t r = 0; r < rows; ++r) {
      const float* value = inner + inner_at(r + tap / 3, tap % 3, columns) + i;
      const float* slopes = outer_slope + outer_at(r + 1, 1, columns);
      for (size_t c = 0; c < columns; ++c, value += kNetInner, slopes += kNetOuter) {
        for (size_t v = 0; v < kVectors; ++v) {
          const NetLanes own = load_lanes(slopes + v * kNetLanes);
          for (size_t n = 0; n < kTogether; ++n) sums[n][v] += value[n] * own;
        }
      }
    }
    for (size_t n = 0; n < kTogether; ++n) {
      for (size_t v = 0; v < kVectors; ++v) {
        float* to = weights + n * kNetOuter + v * kNetLanes;
        store_lanes(to, load_lanes(to) + sums[n][v]);
      }
    }
  }
}

// Slopes of the inner channels of N neighbouring columns of a row. by_outer: conv2 as
// [tap][outer][inner].
template <size_t N>
static inline void backward_inner(const float* by_outer, const float* outer_slope, size_t r,
                                  size_t c, size_t columns, float* inner_slope) {
  constexpr size_t kVectors = kNetInner / kNetLanes;
  NetLanes sums[N][kVectors] = {};
  for (size_t tap = 0; tap < kNetTaps; ++tap) {
    const float* slopes = outer_slope + outer_at(r + 2 - tap / 3, c + 2 - tap % 3, columns);
    const float* weights = by_outer + tap * kNetInner * kNetOuter;
    for (size_t o = 0; o < kNetOuter; ++o, weights += kNetInner) {
      for (size_t v = 0; v < kVectors; ++v) {
        const NetLanes own = load_lanes(weights + v * kNetLanes);
        for (size_t n = 0; n < N; ++n) sums[n][v] += slopes[n * kNetOuter + o] * own;
      }
    }
  }
  for (size_t n = 0; n < N; ++n) {
    float* to = inner_slope + inner_at(r + 1, c + 1 + n, columns);
    for (size_t v = 0; v < kVectors; ++v) store_lanes(to + v * kNetLanes, sums[n][v]);
  }
}

// What reaches the first convolution.
static inline void backward_conv1(const float* window, size_t rows, size_t columns,
                                  const float* inner, const float* inner_slope,
                                  ScoreNet& gradient) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const size_t at = inner_at(r + 1, c + 1, columns);
      float slopes[kNetInner];
      for (size_t i = 0; i < kNetInner; ++i) {
        slopes[i] = inner[at + i] > 0.0f ? inner_slope[at + i] : 0.0f;
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

static void backward_body(const ScoreNet& net, const float* window, size_t rows, size_t columns,
                          const float* slope, ScoreNetScratch& scratch, ScoreNet& gradient) {
  constexpr size_t kTogether = 4;
  const float* const inner = scratch.inner.data();
  float* const outer_slope = scratch.outer_slope.data();
  float* const inner_slope = scratch.inner_slope.data();
  backward_outer(net, scratch.outer.data(), rows, columns, slope, outer_slope, gradient);
  float by_outer[kNetTaps * kNetInner * kNetOuter];
  for (size_t tap = 0; tap < kNetTaps; ++tap) {
    backward_conv2(tap, inner, outer_slope, rows, columns, gradient);
    for (size_t i = 0; i < kNetInner; ++i) {
      for (size_t o = 0; o < kNetOuter; ++o) {
        by_outer[(tap * kNetOuter + o) * kNetInner + i] =
            net.conv2[(tap * kNetInner + i) * kNetOuter + o];
      }
    }
  }
  for (size_t r = 0; r < rows; ++r) {
    size_t c = 0;
    for (; c + kTogether <= columns; c += kTogether) {
      backward_inner<kTogether>(by_outer, outer_slope, r, c, columns, inner_slope);
    }
    for (; c < columns; ++c) backward_inner<1>(by_outer, outer_slope, r, c, columns, inner_slope);
  }
  backward_conv1(window, rows, columns, inner, inner_slope, gradient);
}

}  // namespace reprise::kernels

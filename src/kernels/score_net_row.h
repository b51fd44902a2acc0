// The first convolution of the score network, compiled once for every instruction set. Everything
// is static: see simd_avx512.h.
#pragma once

#include "kernels/score_net.h"

namespace reprise::kernels {

// As many floats as a register holds, that compilers keep there from loop to loop.
#if defined(__AVX512F__)
static constexpr size_t kNetLanes = 16;
#elif defined(__AVX2__)
static constexpr size_t kNetLanes = 8;
#else
static constexpr size_t kNetLanes = 4;
#endif
using NetLanes = float __attribute__((vector_size(kNetLanes * sizeof(float))));

static inline NetLanes load_lanes(const float* from) {
  NetLanes lanes;
  __builtin_memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

static inline void store_lanes(float* to, NetLanes lanes) {
  __builtin_memcpy(to, &lanes, sizeof lanes);
}

// N neighbouring columns; kEdge: some of what they see may lie beyond the row.
template <size_t N, bool kEdge>
static inline void inner_columns(const ScoreNet& net, const float* const (&in)[3], size_t first,
                                 size_t columns, float* out) {
  constexpr size_t kVectors = kNetInner / kNetLanes;
  NetLanes sums[N][kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    for (size_t n = 0; n < N; ++n) sums[n][v] = load_lanes(net.bias1.data() + v * kNetLanes);
  }
  for (size_t row = 0; row < 3; ++row) {
    if (in[row] == nullptr) continue;
    for (size_t shift = 0; shift < 3; ++shift) {
      const size_t from = first + shift;  // one more than the column that is read
      if (kEdge && (from == 0 || from > columns)) continue;
      const float* weights = net.conv1.data() + (row * 3 + shift) * kNetInner;
      for (size_t v = 0; v < kVectors; ++v) {
        const NetLanes own = load_lanes(weights + v * kNetLanes);
        for (size_t n = 0; n < N; ++n) sums[n][v] += in[row][from - 1 + n] * own;
      }
    }
  }
  for (size_t n = 0; n < N; ++n) {
    float* to = out + (first + 1 + n) * kNetInner;
    for (size_t v = 0; v < kVectors; ++v) {
      store_lanes(to + v * kNetLanes, sums[n][v] > 0.0f ? sums[n][v] : NetLanes{});
    }
  }
}

// As score_net_inner().
static inline void inner_row(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                             float* out) {
  constexpr size_t kTogether = 4;
  for (size_t i = 0; i < kNetInner; ++i) out[i] = out[(columns + 1) * kNetInner + i] = 0.0f;
  inner_columns<1, true>(net, in, 0, columns, out);
  size_t column = 1;
  for (; column + kTogether < columns; column += kTogether) {
    inner_columns<kTogether, false>(net, in, column, columns, out);
  }
  for (; column < columns; ++column) inner_columns<1, true>(net, in, column, columns, out);
}

}  // namespace reprise::kernels

// Score network with AVX2: 3 columns share every load of the weights of 32 channels.
#include "kernels/score_net_isa.h"
#include "kernels/score_net_row.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

constexpr int kColumns = 3, kLanes = 8, kVectors = kNetOuter / kLanes;
constexpr size_t kInputs = 3 * kNetInner;

template <int N>
void project(const ScoreNet& net, const float* const (&in)[3], size_t first, float* out) {
  __m256 sums[N][kVectors];
  unrolled<N * kVectors>([&]<int i>() __attribute__((always_inline)) {
    sums[i / kVectors][i % kVectors] = _mm256_loadu_ps(net.bias2.data() + i % kVectors * kLanes);
  });
  for (size_t row = 0; row < 3; ++row) {
    if (in[row] == nullptr) continue;
    const float* values = in[row] + first * kNetInner;
    const float* weights = net.conv2.data() + row * kInputs * kNetOuter;
    for (size_t i = 0; i < kInputs; ++i, ++values, weights += kNetOuter) {
      unrolled<N * kVectors>([&]<int n>() __attribute__((always_inline)) {
        const __m256 value = _mm256_broadcast_ss(values + n % N * static_cast<int>(kNetInner));
        const __m256 weight = _mm256_loadu_ps(weights + n / N * kLanes);
        sums[n % N][n / N] = _mm256_fmadd_ps(weight, value, sums[n % N][n / N]);
      });
    }
  }
  unrolled<N>([&]<int n>() __attribute__((always_inline)) {
    __m256 all = _mm256_setzero_ps();
    unrolled<kVectors>([&]<int v>() __attribute__((always_inline)) {
      const __m256 active = _mm256_max_ps(_mm256_setzero_ps(), sums[n][v]);
      all = _mm256_fmadd_ps(_mm256_loadu_ps(net.conv3.data() + v * kLanes), active, all);
    });
    out[first + n] = sum_256(all);
  });
}

}  // namespace

void score_net_inner_avx2(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                          float* out) {
  inner_row(net, in, columns, out);
}

void score_net_project_avx2(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                            float* out) {
  size_t column = 0;
  for (; column + kColumns <= columns; column += kColumns) project<kColumns>(net, in, column, out);
  for (; column < columns; ++column) project<1>(net, in, column, out);
}

}  // namespace reprise::kernels

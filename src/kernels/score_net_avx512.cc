// Score network with AVX-512: 8 columns share every load of the weights of 32 channels.
#include "kernels/score_net_isa.h"
#include "kernels/score_net_row.h"
#include "kernels/simd_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kColumns = 8, kLanes = 16, kInputs = 3 * kNetInner;

template <int N>
void project(const ScoreNet& net, const float* const (&in)[3], size_t first, float* out) {
  __m512 low[N], high[N];
  for (int n = 0; n < N; ++n) {
    low[n] = _mm512_loadu_ps(net.bias2.data());
    high[n] = _mm512_loadu_ps(net.bias2.data() + kLanes);
  }
  for (size_t row = 0; row < 3; ++row) {
    if (in[row] == nullptr) continue;
    const float* values = in[row] + first * kNetInner;
    const float* weights = net.conv2.data() + row * kInputs * kNetOuter;
    for (size_t i = 0; i < kInputs; ++i, weights += kNetOuter) {
      const __m512 a = _mm512_loadu_ps(weights), b = _mm512_loadu_ps(weights + kLanes);
      for (int n = 0; n < N; ++n) {
        const __m512 value = _mm512_set1_ps(values[static_cast<size_t>(n) * kNetInner + i]);
        low[n] = _mm512_fmadd_ps(a, value, low[n]);
        high[n] = _mm512_fmadd_ps(b, value, high[n]);
      }
    }
  }
  const __m512 zero = _mm512_setzero_ps(), conv3 = _mm512_loadu_ps(net.conv3.data()),
               more = _mm512_loadu_ps(net.conv3.data() + kLanes);
  for (int n = 0; n < N; ++n) {
    const __m512 sum = _mm512_mul_ps(conv3, _mm512_max_ps(zero, low[n]));
    out[first + static_cast<size_t>(n)] =
        _mm512_reduce_add_ps(_mm512_fmadd_ps(more, _mm512_max_ps(zero, high[n]), sum));
  }
}

}  // namespace

void score_net_inner_avx512(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                            float* out) {
  inner_row(net, in, columns, out);
}

void score_net_project_avx512(const ScoreNet& net, const float* const (&in)[3], size_t columns,
                              float* out) {
  size_t column = 0;
  for (; column + kColumns <= columns; column += kColumns) project<kColumns>(net, in, column, out);
  for (; column < columns; ++column) project<1>(net, in, column, out);
}

}  // namespace reprise::kernels

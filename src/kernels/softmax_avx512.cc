#include "kernels/simd_avx512.h"
#include "kernels/softmax_isa.h"

namespace reprise::kernels {
namespace {

constexpr size_t kLanes = 16;
constexpr float kLog2e = 1.44269504f;

// Calls body(offset, lanes) for whole vectors and the masked rest.
template <typename Body>
inline void for_vectors(size_t n, Body body) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, static_cast<__mmask16>(0xffff));
  if (i < n) body(i, first_lanes(static_cast<unsigned>(n - i)));
}

}  // namespace

float softmax_avx512(float* x, size_t n) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 tops = lowest;
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    tops = _mm512_max_ps(tops, _mm512_mask_loadu_ps(lowest, lanes, x + i));
  });
  const float top = _mm512_reduce_max_ps(tops);
  // Nothing visible: subtracting 0 instead of -inf makes every weight 2^-inf = 0.
  const __m512 base = _mm512_set1_ps(top == -__builtin_inff() ? 0.0f : top);
  const __m512 log2e = _mm512_set1_ps(kLog2e);
  __m512 sums = _mm512_setzero_ps();
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    const __m512 logit = _mm512_mask_loadu_ps(lowest, lanes, x + i);
    const __m512 weight = exp2_512(_mm512_mul_ps(_mm512_sub_ps(logit, base), log2e));
    sums = _mm512_add_ps(sums, weight);
    _mm512_mask_storeu_ps(x + i, lanes, weight);
  });
  const float total = _mm512_reduce_add_ps(sums);
  if (!(total > 0.0f)) return -__builtin_inff();
  const __m512 inverse = _mm512_set1_ps(1.0f / total);
  for_vectors(n, [&](size_t i, __mmask16 lanes) {
    const __m512 weight = _mm512_maskz_loadu_ps(lanes, x + i);
    _mm512_mask_storeu_ps(x + i, lanes, _mm512_mul_ps(weight, inverse));
  });
  return top + __builtin_logf(total);
}

}  // namespace reprise::kernels

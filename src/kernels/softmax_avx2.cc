#include "kernels/simd_avx2.h"
#include "kernels/softmax_isa.h"

namespace reprise::kernels {
namespace {

constexpr size_t kLanes = kLanes256;
constexpr float kLog2e = 1.44269504f;

}  // namespace

float softmax_avx2(float* x, size_t n) {
  const __m256 nothing = _mm256_set1_ps(-__builtin_inff());
  __m256 tops = nothing;
  for_vectors(
      n, [&](size_t i, auto lanes) { tops = _mm256_max_ps(tops, lanes.load(x + i, nothing)); });
  const float top = max_256(tops);
  // Nothing visible: subtracting 0 instead of -inf makes every weight 2^-inf = 0.
  const __m256 base = _mm256_set1_ps(top == -__builtin_inff() ? 0.0f : top);
  const __m256 log2e = _mm256_set1_ps(kLog2e);
  __m256 sums = _mm256_setzero_ps();
  for_vectors(n, [&](size_t i, auto lanes) {
    const __m256 logit = lanes.load(x + i, nothing);
    const __m256 weight = exp2_256(_mm256_mul_ps(_mm256_sub_ps(logit, base), log2e));
    sums = _mm256_add_ps(sums, weight);
    lanes.store(x + i, weight);
  });
  const float total = sum_256(sums);
  if (!(total > 0.0f)) return -__builtin_inff();
  const __m256 inverse = _mm256_set1_ps(1.0f / total);
  for_vectors(n, [&](size_t i, auto lanes) {
    lanes.store(x + i, _mm256_mul_ps(lanes.load(x + i), inverse));
  });
  return top + __builtin_logf(total);
}

namespace {

// What the weights exp(x - base) of each page make together; returns all weights, lane by lane.
// out may be x: pages leave theirs where logits of earlier pages were.
inline __m256 pool_pages(const float* x, size_t pages, bool largest, float base, float* out) {
  static_assert(2 * kLanes == kSharePage);
  const __m256 bases = _mm256_set1_ps(base), log2e = _mm256_set1_ps(kLog2e);
  const auto weigh = [&](const float* logits) {
    return exp2_256(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(logits), bases), log2e));
  };
  __m256 sums = _mm256_setzero_ps();
  for (size_t p = 0; p < pages; ++p) {
    const __m256 low = weigh(x + p * kSharePage), high = weigh(x + p * kSharePage + kLanes);
    const __m256 both = _mm256_add_ps(low, high);
    sums = _mm256_add_ps(sums, both);
    out[p] = largest ? max_256(_mm256_max_ps(low, high)) : sum_256(both);
  }
  return sums;
}

}  // namespace

void page_shares_avx2(const float* x, size_t pages, bool largest, float lse, float* shares) {
  // Nothing visible: subtracting 0 instead of -inf makes every weight 2^-inf = 0.
  pool_pages(x, pages, largest, lse == -__builtin_inff() ? 0.0f : lse, shares);
}

void add_page_shares_avx2(float* x, size_t pages, bool largest, float factor, float* shares) {
  __m256 tops = _mm256_set1_ps(-__builtin_inff());
  for (size_t i = 0; i < pages * kSharePage; i += kLanes) {
    tops = _mm256_max_ps(tops, _mm256_loadu_ps(x + i));
  }
  const float top = max_256(tops);
  if (top == -__builtin_inff()) return;
  const float scale = factor / sum_256(pool_pages(x, pages, largest, top, x));
  for (size_t p = 0; p < pages; ++p) shares[p] += scale * x[p];
}

}  // namespace reprise::kernels

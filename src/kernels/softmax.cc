#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu.h"
#include "kernels/softmax_isa.h"

namespace reprise::kernels {

float softmax_ref(float* x, size_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float top = -kInfinity;
  for (size_t i = 0; i < n; ++i) top = std::max(top, x[i]);
  if (top == -kInfinity) {
    std::fill_n(x, n, 0.0f);
    return -kInfinity;
  }
  double total = 0.0;
  for (size_t i = 0; i < n; ++i) total += x[i] = std::exp(x[i] - top);
  const auto inverse = static_cast<float>(1.0 / total);
  for (size_t i = 0; i < n; ++i) x[i] *= inverse;
  return top + static_cast<float>(std::log(total));
}

void page_shares_ref(const float* x, size_t pages, bool largest, float lse, float* shares) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (size_t page = 0; page < pages; ++page, x += kSharePage) {
    float share = 0.0f;
    for (size_t i = 0; i < kSharePage && lse != -kInfinity; ++i) {
      const float weight = std::exp(x[i] - lse);
      share = largest ? std::max(share, weight) : share + weight;
    }
    shares[page] = share;
  }
}

void page_shares(const float* x, size_t pages, bool largest, float lse, float* shares) {
  form<page_shares_ref, page_shares_avx2, page_shares_avx512>()(x, pages, largest, lse, shares);
}

void add_page_shares_ref(float* x, size_t pages, bool largest, float factor, float* shares) {
  softmax_ref(x, kSharePage * pages);
  for (size_t page = 0; page < pages; ++page, x += kSharePage) {
    const float share =
        largest ? *std::max_element(x, x + kSharePage) : std::accumulate(x, x + kSharePage, 0.0f);
    shares[page] += factor * share;
  }
}

void add_page_shares(float* x, size_t pages, bool largest, float factor, float* shares) {
  form<add_page_shares_ref, add_page_shares_avx2, add_page_shares_avx512>()(x, pages, largest,
                                                                            factor, shares);
}

float softmax(float* x, size_t n) {
  return form<softmax_ref, softmax_avx2, softmax_avx512>()(x, n);
}

}  // namespace reprise::kernels

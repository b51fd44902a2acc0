#include "kernels/largest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/largest_isa.h"

namespace reprise::kernels {
namespace {

constexpr unsigned kBucketShift = 32 - 11;

/// Orders like scores; NaN is below everything.
uint32_t order(float score) {
  const auto bits = std::bit_cast<uint32_t>(score == 0.0f ? 0.0f : score);  // -0 equals 0
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return score != score ? 0 : ordered;
}

/// The bucket of the k-th largest, and how many are in those above it. A histogram of sign,
/// exponent and two bits of mantissa leaves only one bucket to be partitioned.
struct Border {
  uint32_t bucket;
  size_t above;
};

Border find_border(std::span<const uint32_t> orders, size_t k) {
  std::array<uint32_t, 1u << (32 - kBucketShift)> counts{};
  for (const uint32_t value : orders) ++counts[value >> kBucketShift];
  Border border = {counts.size() - 1, 0};
  for (; border.above + counts[border.bucket] < k; --border.bucket) {
    border.above += counts[border.bucket];
  }
  return border;
}

int32_t* scratch(size_t n) {
  thread_local std::vector<int32_t> orders;
  orders.resize((n + kMarks - 1) / kMarks * kMarks);
  return orders.data();
}

void largest_scalar(const float* scores, size_t n, size_t k, int32_t*, int32_t* indices) {
  largest_ref(scores, n, k, indices);
}

void mark_largest_scalar(const float* scores, size_t n, size_t k, int32_t*, int32_t&,
                         uint16_t* marks) {
  mark_largest_ref(scores, n, k, marks);
}

}  // namespace

void largest_ref(const float* scores, size_t n, size_t k, int32_t* indices) {
  thread_local std::vector<uint32_t> orders;
  thread_local std::vector<int32_t> above, within;  // the border's bucket
  orders.resize(n);
  std::transform(scores, scores + n, orders.begin(), order);
  // Room for one more than is kept: a place is written before it is known to count.
  above.resize(n + 1);
  within.resize(n + 1);
  const Border border = k > 0 ? find_border(orders, k) : Border{~0u, 0};
  size_t chosen = 0, others = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bucket = orders[i] >> kBucketShift;
    above[chosen] = within[others] = static_cast<int32_t>(i);
    chosen += bucket > border.bucket;
    others += bucket == border.bucket;
  }
  const auto last = within.begin() + static_cast<std::ptrdiff_t>(k - chosen);
  std::nth_element(within.begin(), last, within.begin() + static_cast<std::ptrdiff_t>(others),
                   [&](int32_t a, int32_t b) {
                     const auto x = orders[static_cast<size_t>(a)],
                                y = orders[static_cast<size_t>(b)];
                     return x > y || (x == y && a < b);
                   });
  std::sort(within.begin(), last);
  std::merge(above.begin(), above.begin() + static_cast<std::ptrdiff_t>(chosen), within.begin(),
             last, indices);
}

void mark_largest_ref(const float* scores, size_t n, size_t k, uint16_t* marks) {
  thread_local std::vector<int32_t> indices;
  indices.resize(k);
  largest_ref(scores, n, k, indices.data());
  std::fill_n(marks, (n + kMarks - 1) / kMarks, uint16_t{0});
  for (const int32_t index : indices) {
    const auto i = static_cast<size_t>(index);
    marks[i / kMarks] |= static_cast<uint16_t>(1u << i % kMarks);
  }
}

void take_marked_ref(const uint16_t* marks, size_t n, const int32_t* blocks, const float* scores,
                     int32_t* marked_blocks, float* marked_scores) {
  for (size_t i = 0; i < n; ++i) {
    if ((marks[i / kMarks] >> i % kMarks & 1) == 0) continue;
    *marked_blocks++ = blocks[i];
    *marked_scores++ = scores[i];
  }
}

void put_marked_ref(const uint16_t* marks, size_t n, const float* marked, float* scores) {
  for (size_t i = 0; i < n; ++i) {
    if ((marks[i / kMarks] >> i % kMarks & 1) != 0) scores[i] = *marked++;
  }
}

void largest(const float* scores, size_t n, size_t k, int32_t* indices) {
  form<largest_scalar, largest_avx2, largest_avx512>()(scores, n, k, scratch(n), indices);
}

void mark_largest(const float* scores, size_t n, size_t k, int32_t& near, uint16_t* marks) {
  form<mark_largest_scalar, mark_largest_avx2, mark_largest_avx512>()(scores, n, k, scratch(n),
                                                                      near, marks);
}

void take_marked(const uint16_t* marks, size_t n, const int32_t* blocks, const float* scores,
                 int32_t* marked_blocks, float* marked_scores) {
  form<take_marked_ref, take_marked_ref, take_marked_avx512>()(marks, n, blocks, scores,
                                                               marked_blocks, marked_scores);
}

void put_marked(const uint16_t* marks, size_t n, const float* marked, float* scores) {
  form<put_marked_ref, put_marked_ref, put_marked_avx512>()(marks, n, marked, scores);
}

}  // namespace reprise::kernels

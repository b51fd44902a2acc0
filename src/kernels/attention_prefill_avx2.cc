// Prefill with AVX2 in float: groups of up to 4 rows share every load of K and V. Logits are in
// units of log2.
#include <cmath>

#include "kernels/attention_floats_avx2.h"
#include "kernels/attention_isa.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 4, kBlockKeys = kMaxBlockPages * kPageTokens;
// Stands for "none yet": finite, so that a difference of two of them is zero and not NaN.
constexpr float kNoLogit = -3.0e38f;

struct Buffers {
  size_t dims;     // head_dim rounded up to 16
  float* q;        // [rows, head_dim] times scale log2(e)
  float* sums;     // [rows, dims] weighted values, not normalised
  float* largest;  // [rows] largest logit so far
  float* totals;   // [rows] sum of weights
  float* logits;   // [kGroupRows, kBlockKeys], then weights
};

Buffers prepare(const AttendArgs& args, std::byte* scratch) {
  Buffers b;
  const size_t head_dim = args.layout->head_dim;
  b.dims = (head_dim + 15) / 16 * 16;
  b.q = reinterpret_cast<float*>(scratch);
  b.sums = b.q + args.rows * head_dim;
  b.largest = b.sums + args.rows * b.dims;
  b.totals = b.largest + args.rows;
  b.logits = b.totals + args.rows;
  for (size_t r = 0; r < args.rows; ++r) {
    for (size_t d = 0; d < head_dim; ++d) {
      b.q[r * head_dim + d] = args.q[r * args.q_stride + d] * (args.scale * kLog2e);
    }
    b.largest[r] = kNoLogit;
    b.totals[r] = 0.0f;
  }
  __builtin_memset(b.sums, 0, args.rows * b.dims * sizeof(float));
  return b;
}

// Logits of a page for R rows; raises lanes of largest[r].
template <KvType type, int R, bool kRotates>
void score_page(const AttendArgs& args, size_t row, const PageSpan& page, const Buffers& b,
                float* logits, __m256* largest) {
  const size_t head_dim = args.layout->head_dim;
  Logits256 own[R];
  score_tile<type, R, kRotates>(args, b.q + row * head_dim, head_dim, page, own);
  unrolled<R>([&]<int r>() __attribute__((always_inline)) {
    own[r] = adjust_logits(args, row + r, page, own[r]);
    _mm256_storeu_ps(logits + r * kBlockKeys, own[r].low);
    _mm256_storeu_ps(logits + r * kBlockKeys + 8, own[r].high);
    largest[r] = _mm256_max_ps(_mm256_max_ps(own[r].low, own[r].high), largest[r]);  // NaN: none
  });
}

// Turns logits of `keys` keys into weights; returns the factor of what was summed before.
float weigh(float* logits, size_t keys, float largest, float* old_largest, float* total) {
  const float next = largest > *old_largest ? largest : *old_largest;
  const float keep = _mm256_cvtss_f32(exp2_256(_mm256_set1_ps(*old_largest - next)));
  const __m256 top = _mm256_set1_ps(next);
  __m256 sum = _mm256_setzero_ps();
  for (size_t i = 0; i < keys; i += 8) {
    const __m256 weight = exp2_256(_mm256_sub_ps(_mm256_loadu_ps(logits + i), top));
    sum = _mm256_add_ps(sum, weight);
    _mm256_storeu_ps(logits + i, weight);
  }
  *total = *total * keep + sum_256(sum);
  *old_largest = next;
  return keep;
}

template <KvType type, int R, bool kWhole>
void sum_values(size_t head_dim, const PageSpan* const* pages, size_t count, const float* weights,
                size_t dim, const float* keep, float* out, size_t stride) {
  __m256 sums[R][2];
  unrolled<2 * R>([&]<int i>() __attribute__((always_inline)) {
    const __m256 sum = _mm256_loadu_ps(out + i / 2 * stride + dim + i % 2 * 8);
    sums[i / 2][i % 2] = _mm256_mul_ps(sum, _mm256_set1_ps(keep[i / 2]));
  });
  for (size_t i = 0; i < count; ++i) {
    const std::byte* tile = pages[i]->v;
    for (size_t pair = 0; pair < kPageTokens / 2; ++pair) {
      add_products<R>(sums, sums, weights + i * kPageTokens + 2 * pair, kBlockKeys,
                      load_v_pair<type, kWhole>(head_dim, tile, pair, dim),
                      load_v_pair<type, kWhole>(head_dim, tile, pair, dim + 8));
    }
  }
  unrolled<2 * R>([&]<int i>() __attribute__((always_inline)) {
    _mm256_storeu_ps(out + i / 2 * stride + dim + i % 2 * 8, sums[i / 2][i % 2]);
  });
}

// One block for R rows.
template <KvType type, int R>
void attend_group(const AttendArgs& args, size_t row, const PageBlock& block, const Buffers& b) {
  const RowWindow window = row_window(args, row, R);
  const PageSpan* pages[kMaxBlockPages];
  __m256 largest[R];
  float keep[R];
  for (__m256& x : largest) x = _mm256_set1_ps(kNoLogit);
  size_t count = 0;
  for (size_t slot = 0; slot < block.slots; ++slot) {
    const PageSpan* page = block.pages[slot];
    if (page == nullptr || !sees(window, *page)) continue;
    const auto score =
        page->cos_sin == nullptr ? score_page<type, R, false> : score_page<type, R, true>;
    score(args, row, *page, b, b.logits + count * kPageTokens, largest);
    pages[count++] = page;
  }
  if (count == 0) return;
  for (int r = 0; r < R; ++r) {
    keep[r] = weigh(b.logits + r * kBlockKeys, count * kPageTokens, max_256(largest[r]),
                    b.largest + row + r, b.totals + row + r);
  }
  const size_t head_dim = args.layout->head_dim;
  float* const sums = b.sums + row * b.dims;
  for (size_t dim = 0; dim < b.dims; dim += 16) {
    const auto add = dim + 16 <= head_dim ? sum_values<type, R, true> : sum_values<type, R, false>;
    add(head_dim, pages, count, b.logits, dim, keep, sums, b.dims);
  }
}

template <KvType type>
void attend_block(const AttendArgs& args, const PageBlock& block, const Buffers& b) {
  size_t row = 0;
  for (; row + kGroupRows <= args.rows; row += kGroupRows) {
    attend_group<type, kGroupRows>(args, row, block, b);
  }
  switch (args.rows - row) {
    case 3:
      return attend_group<type, 3>(args, row, block, b);
    case 2:
      return attend_group<type, 2>(args, row, block, b);
    case 1:
      return attend_group<type, 1>(args, row, block, b);
  }
}

void finish_row(const AttendArgs& args, size_t row, const Buffers& b) {
  const float total = b.totals[row], inverse = total > 0.0f ? 1.0f / total : 0.0f;
  for (size_t d = 0; d < args.layout->head_dim; ++d) {
    args.out[row * args.out_stride + d] = b.sums[row * b.dims + d] * inverse;
  }
  args.lse[row] = total > 0.0f ? b.largest[row] * kLn2 + logf(total) : -__builtin_inff();
}

}  // namespace

void attend_prefill_avx2(const AttendArgs& args, std::byte* scratch) {
  const Buffers b = prepare(args, scratch);
  PageBlock block;
  for (size_t page = 0; page < args.pages.size();) {
    page = next_block(args, page, kMaxBlockPages, block);
    switch (args.layout->type) {
      case KvType::kBF16:
        attend_block<KvType::kBF16>(args, block, b);
        break;
      case KvType::kF16:
        attend_block<KvType::kF16>(args, block, b);
        break;
      case KvType::kF32:
        attend_block<KvType::kF32>(args, block, b);
        break;
      case KvType::kQ8_0:
        attend_block<KvType::kQ8_0>(args, block, b);
        break;
    }
  }
  for (size_t row = 0; row < args.rows; ++row) finish_row(args, row, b);
}

}  // namespace reprise::kernels

#include <algorithm>
#include <cstring>

#include "kernels/avx2.h"
#include "kernels/codes_avx2.h"
#include "kernels/integer_tiles.h"
#include "kernels/matmul_isa.h"
#include "kernels/round_avx2.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

template <TensorType kType>
void expand_half(const PackedLayout& layout, const std::byte* panel, size_t begin, size_t end,
                 size_t half, Int8Weights* tile) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  const std::byte* plane = panel + layout.codes_offset + begin * code_bytes(kFormat) + 32 * half;
  for (size_t step = begin; step < end; ++step, ++tile, plane += code_bytes(kFormat)) {
    for (size_t j = 0; j < 8; ++j) {
      auto* out = reinterpret_cast<__m256i*>(tile->codes[j][8 * half]);
      _mm256_store_si256(out, load_word<kType>(plane, j));
    }
    for (size_t g = 0; g < kBlockCols / kFormat.group; ++g) {
      Scale8 s = load_scale<kType>(panel, step, g, half);
      if constexpr (!kFormat.has_min) {
        constexpr auto kZero = static_cast<float>(kFormat.zero());
        s.min = _mm256_mul_ps(s.scale, _mm256_set1_ps(-kZero));
      }
      _mm256_store_ps(tile->scale[g] + 8 * half, s.scale);
      _mm256_store_ps(tile->min[g] + 8 * half, s.min);
    }
  }
}

// Of R rows times H halves of 16 rows of weights.
template <int R, int H>
using Dots = __m256i[R][H];

// Products of kWords words of codes in 16-bit sums; q and codes point at the first ones.
template <int kWords, int R, int H>
[[gnu::always_inline]] inline void dot_words(const int8_t* q, const uint8_t (*codes)[4],
                                             Dots<R, H>& dots) {
  asm("" : "+r"(q));  // else every column of every row gets a pointer of its own, in memory
  unrolled<kWords>([&]<int j>() __attribute__((always_inline)) {
    const auto* halves = reinterpret_cast<const __m256i*>(codes + 16 * j);
    __m256i w[H];
    unrolled<H>([&]<int h>()
                    __attribute__((always_inline)) { w[h] = _mm256_load_si256(halves + h); });
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const auto* four = reinterpret_cast<const float*>(q + r * kBlockCols + 4 * j);
      const __m256i x = _mm256_castps_si256(_mm256_broadcast_ss(four));
      unrolled<H>([&]<int h>() __attribute__((always_inline)) {
        const __m256i products = _mm256_maddubs_epi16(w[h], x);
        __m256i& dot = dots[r][h];
        dot = j == 0 ? products : in_order(_mm256_add_epi16(dot, products));
      });
    });
  });
}

// Words whose products 16-bit sums hold, of a group's.
constexpr size_t words_together(const QuantFormat& f) {
  constexpr size_t kPair = 2 * static_cast<size_t>(kLargestInt8);
  return std::min<size_t>(f.group / 4, 32767 / (kPair * ((1u << f.bits) - 1)));
}

// Products of a group in 32 bits.
template <TensorType kType, int R, int H>
[[gnu::always_inline]] inline void dot_group(const int8_t* q, const uint8_t (*codes)[4],
                                             Dots<R, H>& dots) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  constexpr int kTogether = words_together(kFormat), kParts = kFormat.group / 4 / kTogether;
  unrolled<kParts>([&]<int part>() __attribute__((always_inline)) {
    Dots<R, H> sums;
    dot_words<kTogether, R, H>(q + 4 * kTogether * part, codes + 16 * kTogether * part, sums);
    unrolled<R * H>([&]<int i>() __attribute__((always_inline)) {
      const __m256i wide = _mm256_madd_epi16(sums[i / H][i % H], _mm256_set1_epi16(1));
      __m256i& dot = dots[i / H][i % H];
      dot = part == 0 ? wide : in_order(_mm256_add_epi32(dot, wide));
    });
  });
}

// Shuffles that leave byte c of every four.
struct alignas(32) OneOfFour {
  constexpr OneOfFour() {
    for (int c = 0; c < 4; ++c) {
      for (int i = 0; i < 32; ++i) order[c][i] = static_cast<int8_t>(i % 4 == 0 ? i % 16 + c : -1);
    }
  }
  int8_t order[4][32] = {};
};
constexpr OneOfFour kOneOfFour;

// sums += what the products of group g stand for.
template <TensorType kType, int R, int H>
[[gnu::always_inline]] inline void add_scaled(const Int8Activations& x, size_t row,
                                              const Int8Weights& w, size_t g, size_t half,
                                              const Dots<R, H>& dots, float* sums) {
  constexpr bool kWhole = quant_format(kType)->group == kBlockCols;
  const float *scales = w.scale[g] + 8 * half, *mins = w.min[g] + 8 * half;
  unrolled<R>([&]<int r>() __attribute__((always_inline)) {
    const size_t at = row + r, column = x.top_column[at];
    const auto* orders = reinterpret_cast<const __m256i*>(kOneOfFour.order);
    const __m256i order = _mm256_load_si256(orders + column % 4);
    const auto* word = reinterpret_cast<const __m256i*>(w.codes[column / 4][8 * half]);
    const __m256 unit = _mm256_broadcast_ss(x.scale + at), top = _mm256_broadcast_ss(x.top + at);
    const __m256 sum_x = _mm256_broadcast_ss(x.sum[kWhole ? 2 : g] + at);
    unrolled<H>([&]<int h>() __attribute__((always_inline)) {
      __m256 dot = _mm256_cvtepi32_ps(dots[r][h]);
      if (kWhole || column / 16 == g) {
        const __m256i codes = _mm256_shuffle_epi8(_mm256_load_si256(word + h), order);
        dot = _mm256_fmadd_ps(_mm256_cvtepi32_ps(codes), top, dot);
      }
      float* out = sums + 16 * r + 8 * h;
      const __m256 scale = _mm256_mul_ps(_mm256_load_ps(scales + 8 * h), unit);
      const __m256 sum = _mm256_fmadd_ps(dot, scale, _mm256_load_ps(out));
      _mm256_store_ps(out, _mm256_fmadd_ps(_mm256_load_ps(mins + 8 * h), sum_x, sum));
    });
  });
}

// R rows from `row` on of a row tile times both panels.
template <TensorType kType, int R>
void multiply_rows(const MultiplyJob& job, size_t tile, size_t row) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  constexpr int kGroups = kBlockCols / kFormat.group, kWords = 8 / kGroups;
  // Where 16-bit sums end within a group, those of 32 bits take the other half's registers.
  constexpr int H = words_together(kFormat) < kWords ? 1 : 2;
  const auto* w = reinterpret_cast<const Int8Weights*>(job.w);
  for (size_t panel = 0; panel < 2; ++panel) {
    const auto* x = reinterpret_cast<const Int8Activations*>(job.x + tile * job.x_row_tile);
    float* sums = job.sums + tile * kSumElements + (panel * 16 + row) * 16;
    if (job.first) std::memset(sums, 0, R * 16 * sizeof(float));
    for (size_t step = 0; step < job.steps; ++step, ++x, ++w) {
      // The rows of the next tile lie too far from these to be a stream.
      for (size_t r = 0; r < R; r += 2) __builtin_prefetch(x[1].q[row + r]);
      for (size_t g = 0; g < kGroups; ++g) {
        for (size_t half = 0; half < 2; half += H) {
          Dots<R, H> dots;
          dot_group<kType, R, H>(x->q[row] + 4 * kWords * g, w->codes[kWords * g] + 8 * half, dots);
          add_scaled<kType, R, H>(*x, row, *w, g, half, dots, sums + 8 * half);
        }
      }
    }
  }
}

void round_block(const float* x, size_t row, Int8Activations* tile) {
  __m256 values[4];
  for (size_t i = 0; i < 4; ++i) values[i] = _mm256_loadu_ps(x + 8 * i);
  const float top = largest_magnitude(values);
  const bool is_zero = !(top > kSmallestMagnitude);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  uint32_t tops = 0;  // columns of that magnitude
  for (size_t i = 0; i < 4; ++i) {
    const __m256 magnitude = _mm256_andnot_ps(sign, values[i]);
    const __m256 equal = _mm256_cmp_ps(magnitude, _mm256_set1_ps(top), _CMP_EQ_OQ);
    tops |= static_cast<uint32_t>(_mm256_movemask_ps(equal)) << 8 * i;
  }
  const auto column = static_cast<size_t>(__builtin_ctz(tops | 1u << 31));
  const __m256i at = _mm256_set1_epi32(static_cast<int>(column));
  for (size_t i = 0; i < 4; ++i) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i columns = _mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int>(8 * i)));
    const __m256 is_top = _mm256_castsi256_ps(_mm256_cmpeq_epi32(columns, at));
    values[i] = _mm256_andnot_ps(is_top, values[i]);
  }
  const float largest = std::max(largest_magnitude(values), top / kLargestTop);
  const float inverse = is_zero ? 0.0f : kLargestInt8 / largest;
  __m256i q[4];
  for (size_t i = 0; i < 4; ++i) {
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], _mm256_set1_ps(inverse)));
  }
  int32_t sums[2];
  store_codes(q, tile->q[row], sums);
  tile->set_top(row, is_zero ? 0.0f : x[column], column, inverse);
  tile->set_sums(row, largest / kLargestInt8, sums);
}

}  // namespace

void round_int8_avx2(const float* x, size_t count, size_t row, std::byte* tiles) {
  auto* tile = reinterpret_cast<Int8Activations*>(tiles);
  for (size_t column = 0; column < count; column += kBlockCols, ++tile) {
    round_block(x + column, row, tile);
  }
}

void expand_int8_avx2(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                      size_t step_end, std::byte* tiles) {
  for_int8(layout.type, [&](auto type) {
    for (size_t half = 0; half < 2; ++half) {
      expand_half<decltype(type)::value>(layout, panel, step_begin, step_end, half,
                                         reinterpret_cast<Int8Weights*>(tiles));
    }
  });
}

void multiply_int8_avx2(const MultiplyJob& job) {
  for_int8(job.type, [&](auto type) {
    constexpr int kRows = 4;
    for (size_t row = 0; row < job.rows; row += kRows) {
      multiply_rows<decltype(type)::value, kRows>(job, row / 16, row % 16);
    }
  });
}

}  // namespace reprise::kernels

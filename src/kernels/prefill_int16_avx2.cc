#include <cstring>

#include "kernels/avx2.h"
#include "kernels/codes_avx2.h"
#include "kernels/integer_tiles.h"
#include "kernels/matmul_isa.h"
#include "kernels/round_avx2.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

// Pairs of columns 4j and 4j + 2 of eight rows, from the word of their codes.
template <TensorType kType>
[[gnu::always_inline]] inline void store_word(__m256i word, size_t j, size_t half,
                                              Int16Weights* tile) {
  constexpr int kZero = quant_format(kType)->zero();
  // Bytes 0 and 1 of every four, and 2 and 3, each as 16 bits.
  const __m256i first = _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1,
                                         0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
  const __m256i second = _mm256_add_epi16(first, _mm256_set1_epi16(2));
  const __m256i zero = _mm256_set1_epi16(kZero);
  const auto pair = [&](size_t i) {
    return reinterpret_cast<__m256i*>(tile->codes[2 * j + i][8 * half]);
  };
  _mm256_store_si256(pair(0), _mm256_sub_epi16(_mm256_shuffle_epi8(word, first), zero));
  _mm256_store_si256(pair(1), _mm256_sub_epi16(_mm256_shuffle_epi8(word, second), zero));
}

template <TensorType kType>
void expand_half(const PackedLayout& layout, const std::byte* panel, size_t begin, size_t end,
                 size_t half, Int16Weights* tile) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  const std::byte* plane = panel + layout.codes_offset + begin * code_bytes(kFormat) + 32 * half;
  for (size_t step = begin; step < end; ++step, ++tile, plane += code_bytes(kFormat)) {
    for (size_t j = 0; j < 8; ++j) store_word<kType>(load_word<kType>(plane, j), j, half, tile);
    for (size_t g = 0; g < kBlockCols / kFormat.group; ++g) {
      _mm256_store_ps(tile->scale[g] + 8 * half, load_scale<kType>(panel, step, g, half).scale);
    }
  }
}

// Of R rows times both halves of 16 rows of weights.
template <int R>
using Dots = __m256i[R][2];

// Products of kPairs pairs of columns; q points at the first of the first row.
template <int kPairs, int R>
[[gnu::always_inline]] inline void dot_pairs(const int16_t* q, const int16_t (*codes)[16][2],
                                             Dots<R>& dots) {
  asm("" : "+r"(q));  // else every column of every row gets a pointer of its own, in memory
  unrolled<kPairs>([&]<int p>() __attribute__((always_inline)) {
    const auto* halves = reinterpret_cast<const __m256i*>(codes[p]);
    const __m256i low = _mm256_load_si256(halves), high = _mm256_load_si256(halves + 1);
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      const auto* two = reinterpret_cast<const float*>(q + r * kBlockCols + 2 * p);
      const __m256i x = _mm256_castps_si256(_mm256_broadcast_ss(two));
      const __m256i products[2] = {_mm256_madd_epi16(low, x), _mm256_madd_epi16(high, x)};
      unrolled<2>([&]<int h>() __attribute__((always_inline)) {
        __m256i& dot = dots[r][h];
        dot = p == 0 ? products[h] : in_order(_mm256_add_epi32(dot, products[h]));
      });
    });
  });
}

// sums += what the products of a group stand for.
template <int R>
[[gnu::always_inline]] inline void add_scaled(const Int16Activations& x, size_t row,
                                              const float (&scales)[16], const Dots<R>& dots,
                                              float* sums) {
  unrolled<2>([&]<int h>() __attribute__((always_inline)) {
    const __m256 scale = _mm256_load_ps(scales + 8 * h);
    unrolled<R>([&]<int r>() __attribute__((always_inline)) {
      float* at = sums + 16 * r + 8 * h;
      const __m256 unit = _mm256_mul_ps(scale, _mm256_broadcast_ss(x.scale + row + r));
      const __m256 dot = _mm256_cvtepi32_ps(dots[r][h]);
      _mm256_store_ps(at, _mm256_fmadd_ps(dot, unit, _mm256_load_ps(at)));
    });
  });
}

// R rows from `row` on of a row tile times both panels.
template <int kGroups, int R>
void multiply_rows(const MultiplyJob& job, size_t tile, size_t row) {
  const auto* w = reinterpret_cast<const Int16Weights*>(job.w);
  for (size_t panel = 0; panel < 2; ++panel) {
    const auto* x = reinterpret_cast<const Int16Activations*>(job.x + tile * job.x_row_tile);
    float* sums = job.sums + tile * kSumElements + (panel * 16 + row) * 16;
    if (job.first) std::memset(sums, 0, R * 16 * sizeof(float));
    for (size_t step = 0; step < job.steps; ++step, ++x, ++w) {
      // The rows of the next tile lie too far from these to be a stream.
      for (size_t r = 0; r < R; ++r) __builtin_prefetch(x[1].q[row + r]);
      for (size_t g = 0; g < kGroups; ++g) {
        constexpr int kPairs = 16 / kGroups;
        Dots<R> dots;
        dot_pairs<kPairs, R>(x->q[row] + 2 * kPairs * g, w->codes + kPairs * g, dots);
        add_scaled<R>(*x, row, w->scale[g], dots, sums);
      }
    }
  }
}

}  // namespace

void round_int16_avx2(const float* x, size_t count, size_t row, std::byte* tiles) {
  auto* tile = reinterpret_cast<Int16Activations*>(tiles);
  for (size_t column = 0; column < count; column += kBlockCols, ++tile) {
    const RoundedBlock rounded(x + column, kLargestInt16);
    for (size_t half = 0; half < 2; ++half) {
      // Packing works per 128 bits.
      const __m256i both = _mm256_packs_epi32(rounded.q[2 * half], rounded.q[2 * half + 1]);
      auto* out = reinterpret_cast<__m256i*>(tile->q[row] + 16 * half);
      _mm256_store_si256(out, _mm256_permute4x64_epi64(both, 0xd8));
    }
    tile->scale[row] = rounded.scale;
  }
}

void expand_int16_avx2(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                       size_t step_end, std::byte* tiles) {
  for_int16(layout.type, [&](auto type) {
    for (size_t half = 0; half < 2; ++half) {
      expand_half<decltype(type)::value>(layout, panel, step_begin, step_end, half,
                                         reinterpret_cast<Int16Weights*>(tiles));
    }
  });
}

void multiply_int16_avx2(const MultiplyJob& job) {
  for_int16(job.type, [&](auto type) {
    constexpr int kGroups = kBlockCols / quant_format(decltype(type)::value)->group, kRows = 4;
    for (size_t row = 0; row < job.rows; row += kRows) {
      multiply_rows<kGroups, kRows>(job, row / 16, row % 16);
    }
  });
}

}  // namespace reprise::kernels

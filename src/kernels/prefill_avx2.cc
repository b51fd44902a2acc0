#include "kernels/avx2.h"
#include "kernels/codes_avx2.h"
#include "kernels/matmul_isa.h"
#include "kernels/output_avx2.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

// Round to nearest even; the upper half of every lane is the bf16.
inline __m256i round_up_bits(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

inline __m256i round_pairs(__m256 even, __m256 odd) {
  return _mm256_blend_epi16(_mm256_srli_epi32(round_up_bits(even), 16), round_up_bits(odd), 0xaa);
}

inline void store_pairs(uint16_t* out, __m256i pairs) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), pairs);
}

template <TensorType kType>
void expand_float(const PackedLayout& layout, const std::byte* panel, size_t begin, size_t end,
                  size_t half, uint16_t* out) {
  for (size_t column = begin * kBlockCols; column < end * kBlockCols; column += 2, out += 32) {
    __m256i pairs = _mm256_setzero_si256();
    if (column < layout.cols) {
      if constexpr (kType == TensorType::kBF16) {
        pairs = load_register(panel + 32 * half, column / 2);
      } else {
        const std::byte* at = panel + column * 32 + 16 * half;
        const bool last = column + 1 == layout.cols;
        pairs = round_pairs(load_halves(at), last ? _mm256_setzero_ps() : load_halves(at + 32));
      }
    }
    store_pairs(out, pairs);
  }
}

inline __m256 even_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 odd_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}

// Rows of activations as floats, so that each is broadcast by one load.
template <int R>
struct WideRows {
  alignas(32) float values[R][kVectorSteps * kBlockCols];
};

template <int R>
void widen(const uint16_t* x, size_t steps, WideRows<R>& out) {
  for (size_t step = 0; step < steps; ++step, x += kTileElements) {
    const uint16_t* from = x;
    for (size_t r = 0; r < R; ++r, from += kBlockCols) {
      float* to = out.values[r] + step * kBlockCols;
      unrolled<kBlockCols / 8>([&]<int i>() __attribute__((always_inline)) {
        const auto* eight = reinterpret_cast<const __m128i*>(from) + i;
        const __m256i bits = _mm256_cvtepu16_epi32(_mm_load_si128(eight));
        _mm256_store_ps(to + 8 * i, even_of(bits));
      });
    }
  }
}

// acc[r] += x[r][column] w, for the weights of one column of 16 rows.
template <int R>
[[gnu::always_inline]] inline void add_column(const WideRows<R>& x, size_t column, __m256 low,
                                              __m256 high, __m256 (&acc)[R][2]) {
  unrolled<R>([&]<int r>() __attribute__((always_inline)) {
    const __m256 value = _mm256_broadcast_ss(x.values[r] + column);
    acc[r][0] = _mm256_fmadd_ps(value, low, acc[r][0]);
    acc[r][1] = _mm256_fmadd_ps(value, high, acc[r][1]);
  });
}

// R rows times one panel; sums points at the first row's.
template <int R>
void multiply_panel(const MultiplyJob& job, const WideRows<R>& x, const uint16_t* w, float* sums) {
  __m256 acc[R][2];
  unrolled<2 * R>([&]<int i>() __attribute__((always_inline)) {
    acc[i / 2][i % 2] = job.first ? _mm256_setzero_ps() : _mm256_load_ps(sums + 8 * i);
  });
  for (size_t column = 0; column < job.steps * kBlockCols; column += 2, w += 32) {
    const auto* at = reinterpret_cast<const __m256i*>(w);
    const __m256i low = _mm256_load_si256(at), high = _mm256_load_si256(at + 1);
    add_column<R>(x, column, even_of(low), even_of(high), acc);
    add_column<R>(x, column + 1, odd_of(low), odd_of(high), acc);
  }
  unrolled<2 * R>([&]<int i>() __attribute__((always_inline)) {
    _mm256_store_ps(sums + 8 * i, acc[i / 2][i % 2]);
  });
}

// R rows from `row` on of a row tile times both panels.
template <int R>
void multiply_rows(const MultiplyJob& job, size_t tile, size_t row) {
  WideRows<R> x;
  widen<R>(bf16_tile(job.x + tile * job.x_row_tile) + row * kBlockCols, job.steps, x);
  for (size_t panel = 0; panel < 2; ++panel) {
    float* sums = job.sums + tile * kSumElements + (panel * 16 + row) * 16;
    multiply_panel<R>(job, x, bf16_tile(job.w) + panel * job.steps * kTileElements, sums);
  }
}

}  // namespace

void round_bf16_avx2(const float* x, size_t count, size_t row, std::byte* tiles) {
  uint16_t* out = bf16_tile(tiles) + row * kBlockCols;
  for (; count > 0; out += kTileElements) {
    const size_t now = count < kBlockCols ? count : kBlockCols;
    alignas(32) float values[kBlockCols] = {};
    __builtin_memcpy(values, x, now * sizeof(float));
    for (size_t i = 0; i < kBlockCols; i += 16) {
      const __m256i low = _mm256_srli_epi32(round_up_bits(_mm256_load_ps(values + i)), 16);
      const __m256i high = _mm256_srli_epi32(round_up_bits(_mm256_load_ps(values + i + 8)), 16);
      const __m256i both = _mm256_packus_epi32(low, high);  // works per 128 bits
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + i), _mm256_permute4x64_epi64(both, 0xd8));
    }
    x += now;
    count -= now;
  }
}

void expand_avx2(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                 size_t step_end, std::byte* tiles) {
  uint16_t* out = bf16_tile(tiles);
  for (size_t half = 0; half < 2; ++half, out += 16) {
    if (layout.type == TensorType::kF16) {
      expand_float<TensorType::kF16>(layout, panel, step_begin, step_end, half, out);
    } else {
      expand_float<TensorType::kBF16>(layout, panel, step_begin, step_end, half, out);
    }
  }
}

// Six rows at a time: their twelve sums keep both multipliers busy while they wait for themselves.
void multiply_avx2(const MultiplyJob& job) {
  for (size_t tile = 0; tile < (job.rows + 15) / 16; ++tile) {
    const size_t rows = job.rows - 16 * tile;
    multiply_rows<6>(job, tile, 0);
    if (rows > 6) multiply_rows<5>(job, tile, 6);
    if (rows > 11) multiply_rows<5>(job, tile, 11);
  }
}

void write_avx2(const WriteJob& job) {
  for (size_t row = 0; row < job.sums.rows; ++row) {
    for (size_t panel = 0; panel < 2; ++panel) {
      const float* sums = job.sums.at(row, panel);
      const size_t column = job.column + panel * kPanelRows;
      write_half(job.out, row, column, _mm256_load_ps(sums));
      write_half(job.out, row, column + 8, _mm256_load_ps(sums + 8));
    }
  }
}

}  // namespace reprise::kernels

#include <immintrin.h>

#include "kernels/activation_avx512.h"
#include "kernels/codes_avx512.h"
#include "kernels/matmul_isa.h"
#include "kernels/output_avx512.h"

namespace reprise::kernels {
namespace {

// bf16 pairs (even, odd) of 16 rows.
inline __m512i round_pairs(__m512 even, __m512 odd) {
  static constexpr struct alignas(64) Interleave {
    uint16_t index[32];
    constexpr Interleave() : index() {
      for (uint16_t i = 0; i < 16; ++i) index[2 * i] = i, index[2 * i + 1] = i + 16;
    }
  } kInterleave;
  const __m512bh halves = _mm512_cvtne2ps_pbh(odd, even);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave.index), (__m512i)halves);
}

// 1 + code / 256 of a column of codes: the code becomes the mantissa of a float, so that the
// product with the scale converts it as well.
template <int kColumn>
inline __m512 code_column(__m512i codes) {
  constexpr int kAndOr = 0xea, kShift = 15 - 8 * kColumn;  // (a & b) | c
  if constexpr (kShift > 0) codes = _mm512_slli_epi32(codes, kShift);
  if constexpr (kShift < 0) codes = _mm512_srli_epi32(codes, -kShift);
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(codes, _mm512_set1_epi32(0xff << 15),
                                                       _mm512_set1_epi32(0x3f800000), kAndOr));
}

// bf16 pairs (even, odd) of 16 rows, halves rounded away from zero.
inline __m512i round_columns(__m512 even, __m512 odd) {
  constexpr int kSelect = 0xca;  // a ? b : c
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
  const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(-65536), high, low, kSelect);
}

// Words kFirst, kFirst + kStride and so on, of four columns each, of a tile.
template <TensorType kType, size_t kFirst, size_t kStride>
inline void expand_words(const std::byte* plane, ScaleReader<kType>& scales, uint16_t* out) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  constexpr size_t kGroups = ScaleReader<kType>::kGroups;
  const __m512 unit = _mm512_set1_ps(256.0f);
  __m512i codes[8];
  load_codes<kType>(plane, codes);
  __m512 scale[kGroups], min[kGroups];
  scales.next(scale, min);
  for (size_t g = 0; g < kGroups; ++g) {
    const auto zero = static_cast<float>(kFormat.zero());
    if constexpr (!kFormat.has_min) min[g] = _mm512_mul_ps(scale[g], _mm512_set1_ps(-zero));
    min[g] = _mm512_fnmadd_ps(scale[g], unit, min[g]);
    scale[g] = _mm512_mul_ps(scale[g], unit);
  }
  for (size_t j = kFirst; j < 8; j += kStride) {
    const __m512 s = scale[j * kGroups / 8], m = min[j * kGroups / 8];
    const __m512 c0 = _mm512_fmadd_ps(code_column<0>(codes[j]), s, m);
    const __m512 c1 = _mm512_fmadd_ps(code_column<1>(codes[j]), s, m);
    const __m512 c2 = _mm512_fmadd_ps(code_column<2>(codes[j]), s, m);
    const __m512 c3 = _mm512_fmadd_ps(code_column<3>(codes[j]), s, m);
    _mm512_store_si512(out + 64 * j, round_columns(c0, c1));
    _mm512_store_si512(out + 64 * j + 32, round_columns(c2, c3));
  }
}

template <TensorType kType>
void expand_quantized(const PackedLayout& layout, const std::byte* panel, size_t begin, size_t end,
                      uint16_t* out) {
  constexpr size_t kBytes = code_bytes(*quant_format(kType));
  ScaleReader<kType> scales(panel, begin);
  for (size_t step = begin; step < end; ++step, out += kTileElements) {
    expand_words<kType, 0, 1>(panel + layout.codes_offset + step * kBytes, scales, out);
  }
}

// Words part and part + 4, whose codes of four bits lie in the same bytes.
template <TensorType kType>
void expand_quantized_part(const PackedLayout& layout, const std::byte* panel, size_t step,
                           size_t part, uint16_t* out) {
  const auto* plane = panel + layout.codes_offset + step * code_bytes(*quant_format(kType));
  ScaleReader<kType> scales(panel, step);
  if (part == 0) return expand_words<kType, 0, kTileParts>(plane, scales, out);
  if (part == 1) return expand_words<kType, 1, kTileParts>(plane, scales, out);
  if (part == 2) return expand_words<kType, 2, kTileParts>(plane, scales, out);
  expand_words<kType, 3, kTileParts>(plane, scales, out);
}

// Columns [begin, end).
template <TensorType kType>
void expand_float(const PackedLayout& layout, const std::byte* panel, size_t begin, size_t end,
                  uint16_t* out) {
  for (size_t column = begin; column < end; column += 2, out += 32) {
    __m512i pairs = _mm512_setzero_si512();
    if (column < layout.cols) {
      if constexpr (kType == TensorType::kBF16) {
        pairs = _mm512_load_si512(panel + column * 32);
      } else {
        const __m512 even = load_halves(panel + column * 32);
        const __m512 odd =
            column + 1 < layout.cols ? load_halves(panel + column * 32 + 32) : _mm512_setzero_ps();
        pairs = round_pairs(even, odd);
      }
    }
    _mm512_store_si512(out, pairs);
  }
}

// False where the type is none of floats.
inline bool expand_floats(const PackedLayout& layout, const std::byte* panel, size_t begin,
                          size_t end, uint16_t* out) {
  if (layout.type == TensorType::kF16) {
    expand_float<TensorType::kF16>(layout, panel, begin, end, out);
  } else if (layout.type == TensorType::kBF16) {
    expand_float<TensorType::kBF16>(layout, panel, begin, end, out);
  } else {
    return false;
  }
  return true;
}

// 8 rows times 2 panels; sums points at the rows' sums of the first panel.
void multiply_half(const MultiplyJob& job, const uint16_t* x, float* sums) {
  constexpr size_t kRows = 8;
  __m512 c[2][kRows];
  for (size_t r = 0; r < kRows; ++r) {
    c[0][r] = job.first ? _mm512_setzero_ps() : _mm512_load_ps(sums + 16 * r);
    c[1][r] = job.first ? _mm512_setzero_ps() : _mm512_load_ps(sums + 256 + 16 * r);
  }
  const uint16_t* w = bf16_tile(job.w);
  for (size_t step = 0; step < job.steps; ++step, x += kTileElements, w += kTileElements) {
    for (size_t pair = 0; pair < 16; ++pair) {
      const auto w0 = (__m512bh)_mm512_load_si512(w + 32 * pair);
      const auto w1 = (__m512bh)_mm512_load_si512(w + job.steps * kTileElements + 32 * pair);
      for (size_t r = 0; r < kRows; ++r) {
        int32_t two;
        __builtin_memcpy(&two, x + r * kBlockCols + 2 * pair, sizeof two);
        const auto both = (__m512bh)_mm512_set1_epi32(two);
        c[0][r] = _mm512_dpbf16_ps(c[0][r], both, w0);
        c[1][r] = _mm512_dpbf16_ps(c[1][r], both, w1);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    _mm512_store_ps(sums + 16 * r, c[0][r]);
    _mm512_store_ps(sums + 256 + 16 * r, c[1][r]);
  }
}

// Whole panels without a bias.
template <bool kAdds>
inline void write_whole(const WriteJob& job) {
  float* out = job.out.data + job.column;
  for (size_t row = 0; row < job.sums.rows; ++row, out += job.out.stride) {
    __m512 left = _mm512_load_ps(job.sums.at(row, 0)), right = _mm512_load_ps(job.sums.at(row, 1));
    if constexpr (kAdds) {
      left = _mm512_add_ps(_mm512_loadu_ps(out), left);
      right = _mm512_add_ps(_mm512_loadu_ps(out + kPanelRows), right);
    }
    _mm512_storeu_ps(out, left);
    _mm512_storeu_ps(out + kPanelRows, right);
  }
}

}  // namespace

void round_bf16_avx512(const float* x, size_t count, size_t row, std::byte* tiles) {
  uint16_t* out = bf16_tile(tiles) + row * kBlockCols;
  for (; count > 0; out += kTileElements) {
    const size_t now = count < kBlockCols ? count : kBlockCols;
    const auto mask = static_cast<uint32_t>((uint64_t{1} << now) - 1);
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + 16);
    _mm512_store_si512(out, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    x += now;
    count -= now;
  }
}

void expand_avx512(const PackedLayout& layout, const std::byte* panel, size_t step_begin,
                   size_t step_end, std::byte* tiles) {
  uint16_t* out = bf16_tile(tiles);
  if (expand_floats(layout, panel, step_begin * kBlockCols, step_end * kBlockCols, out)) return;
  for_quantized(layout.type, [&](auto type) {
    expand_quantized<decltype(type)::value>(layout, panel, step_begin, step_end, out);
  });
}

void expand_part_avx512(const PackedLayout& layout, const std::byte* panel, size_t step,
                        size_t part, std::byte* tile) {
  constexpr size_t kCols = kBlockCols / kTileParts, kElements = kTileElements / kTileParts;
  uint16_t* out = bf16_tile(tile);
  const size_t column = step * kBlockCols + part * kCols;
  if (expand_floats(layout, panel, column, column + kCols, out + part * kElements)) return;
  for_quantized(layout.type, [&](auto type) {
    expand_quantized_part<decltype(type)::value>(layout, panel, step, part, out);
  });
}

void multiply_avx512(const MultiplyJob& job) {
  for (size_t row = 0; row < job.rows; row += 16) {
    const uint16_t* x = bf16_tile(job.x + row / 16 * job.x_row_tile);
    float* sums = job.sums + row / 16 * kSumElements;
    multiply_half(job, x, sums);
    if (job.rows - row > 8) multiply_half(job, x + 8 * kBlockCols, sums + 8 * 16);
  }
}

void write_avx512(const WriteJob& job) {
  if (job.out.bias == nullptr && job.column + 2 * kPanelRows <= job.out.cols) {
    return job.out.accumulate ? write_whole<true>(job) : write_whole<false>(job);
  }
  for (size_t row = 0; row < job.sums.rows; ++row) {
    write_panel(job.out, row, job.column, _mm512_load_ps(job.sums.at(row, 0)));
    write_panel(job.out, row, job.column + kPanelRows, _mm512_load_ps(job.sums.at(row, 1)));
  }
}

void write_gated_avx512(const WriteGatedJob& job) {
  for (size_t row = 0; row < job.sums.rows; ++row) {
    const __m512 gate = activated_512(_mm512_load_ps(job.sums.at(row, 0)), job.activation);
    const __m512 gated = _mm512_mul_ps(gate, _mm512_load_ps(job.sums.at(row, 1)));
    uint16_t* out = job.out + row / 16 * job.out_row_tile + row % 16 * kBlockCols;
    _mm256_store_si256(reinterpret_cast<__m256i*>(out), (__m256i)_mm512_cvtneps_pbh(gated));
  }
}

}  // namespace reprise::kernels

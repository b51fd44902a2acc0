#include <algorithm>

#include "kernels/avx2.h"
#include "kernels/codes_avx2.h"
#include "kernels/matmul_isa.h"
#include "kernels/output_avx2.h"
#include "kernels/round_avx2.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

inline __m256i four_activations(const int8_t* codes, size_t index) {
  int32_t w;
  __builtin_memcpy(&w, codes + 4 * index, sizeof w);
  return _mm256_set1_epi32(w);
}

// Halves of a panel that go side by side: both where sums stay in registers, so that memory is read
// in its order; it is half as fast again as one half after the other.
template <size_t kRows>
inline constexpr size_t kHalves = kRows <= 2 ? 2 : 1;

struct Dots {
  __m256i q, rest;
};

// Products of kWords words of codes, from first on, and of activations, summed in each 32-bit lane.
// 16-bit sums of two products are added up as far as they fit. Codes of 8 bits are taken as
// code - 128, whose magnitude times 127 fits.
template <TensorType kType, size_t kWords, class Code>
[[gnu::always_inline]] inline Dots dot_words(const Code& code, size_t first,
                                             const ActivationBlock& x) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  constexpr bool kWide = kFormat.zero() == 128;
  constexpr size_t kFit = 32767 / (2 * 127 * ((1 << kFormat.bits) - 1));
  constexpr size_t kTogether = kWide ? 1 : std::min(kWords, kFit);
  Dots sum;
#pragma GCC unroll 8
  for (size_t begin = 0; begin < kWords; begin += kTogether) {
    Dots part;
#pragma GCC unroll 8
    for (size_t j = begin; j < begin + kTogether; ++j) {
      __m256i w = code(first + j);
      Dots d{four_activations(x.q, first + j), four_activations(x.rest, first + j)};
      if constexpr (kWide) {
        w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
        d = {_mm256_sign_epi8(d.q, w), _mm256_sign_epi8(d.rest, w)};
        w = _mm256_abs_epi8(w);
      }
      d = {_mm256_maddubs_epi16(w, d.q), _mm256_maddubs_epi16(w, d.rest)};
      part = j == begin ? d
                        : Dots{in_order(_mm256_add_epi16(part.q, d.q)),
                               in_order(_mm256_add_epi16(part.rest, d.rest))};
    }
    const __m256i ones = _mm256_set1_epi16(1);
    part = {_mm256_madd_epi16(part.q, ones), _mm256_madd_epi16(part.rest, ones)};
    sum = begin == 0 ? part
                     : Dots{_mm256_add_epi32(sum.q, part.q), _mm256_add_epi32(sum.rest, part.rest)};
  }
  return sum;
}

// sum + what the products of a group's codes stand for.
template <TensorType kType>
[[gnu::always_inline]] inline __m256 add_scaled(Dots dots, const Scale8& s,
                                                const ActivationBlock& x, size_t g, __m256 sum) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  const size_t part = kFormat.group == kBlockCols ? 2 : g;
  if constexpr (kFormat.zero_shift > 0 && kFormat.zero() != 128) {
    const auto less_zero = [&](__m256i dot, int32_t neg_sum) {
      return _mm256_add_epi32(dot,
                              _mm256_slli_epi32(_mm256_set1_epi32(neg_sum), kFormat.zero_shift));
    };
    dots = {less_zero(dots.q, x.neg_sum[part]), less_zero(dots.rest, x.neg_rest_sum[part])};
  }
  const __m256 unit = _mm256_mul_ps(s.scale, _mm256_set1_ps(x.scale));
  const __m256 both = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots.rest), _mm256_set1_ps(kRestUnit),
                                      _mm256_cvtepi32_ps(dots.q));
  sum = _mm256_fmadd_ps(both, unit, sum);
  if constexpr (kFormat.has_min) sum = _mm256_fmadd_ps(s.min, _mm256_set1_ps(x.sum[part]), sum);
  return sum;
}

// A block's half: 8 rows of weights times every row of activations.
template <TensorType kType, size_t kRows>
[[gnu::always_inline]] inline void add_block(const std::byte* panel, const std::byte* plane,
                                             size_t block, size_t half, const ActivationBlock* x,
                                             __m256 (&sums)[kRows]) {
  constexpr size_t kGroups = kBlockCols / quant_format(kType)->group, kWords = 8 / kGroups;
  __m256i codes[8];
  if constexpr (kRows > 1) load_codes<kType>(plane, codes);
  const auto code = [&](size_t j) {
    if constexpr (kRows > 1) return codes[j];
    return load_word<kType>(plane, j);  // one by one takes fewer registers
  };
#pragma GCC unroll 2
  for (size_t g = 0; g < kGroups; ++g) {
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const Dots dots = dot_words<kType, kWords>(code, g * kWords, x[r]);
      const Scale8 scale = load_scale<kType>(panel, block, g, half);
      sums[r] = add_scaled<kType>(dots, scale, x[r], g, sums[r]);
    }
  }
}

// In two steps: half of a panel is multiplied at a time.
template <size_t kBytes>
inline void fetch_weights(const std::byte* at) {
  prefetch_weights<kBytes, 8192, 2>(at);
  prefetch_weights<kBytes, 1024, 3>(at);
}

template <TensorType kType, size_t kRows>
[[gnu::always_inline]] inline void quantized_tile(const PackedLayout& layout,
                                                  const std::byte* panel, size_t half,
                                                  const ActivationBlock* x,
                                                  __m256 (&sums)[kHalves<kRows>][kRows]) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  constexpr size_t kBlockBytes = block_bytes(kFormat);
  const std::byte* plane = panel + layout.codes_offset + 32 * half;
  for (size_t block = 0; block < layout.blocks; ++block, x += kRows) {
    if (half == 0) fetch_weights<kBlockBytes>(panel + block * kBlockBytes);
#pragma GCC unroll 2
    for (size_t i = 0; i < kHalves<kRows>; ++i) {
      add_block<kType, kRows>(panel, plane + 32 * i, block, half + i, x, sums[i]);
    }
    plane += code_bytes(kFormat);
  }
}

// 8 weights of one column in float.
template <TensorType kType>
inline __m256 load_column(const std::byte* panel, size_t column, size_t half) {
  if constexpr (kType == TensorType::kF32) {
    return _mm256_load_ps(reinterpret_cast<const float*>(panel) + column * 16 + 8 * half);
  } else if constexpr (kType == TensorType::kF16) {
    return load_halves(panel + column * 32 + 16 * half);
  } else {
    const __m256i pairs =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + column / 2 * 64 + 32 * half));
    return _mm256_castsi256_ps(column % 2 == 0
                                   ? _mm256_slli_epi32(pairs, 16)
                                   : _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
  }
}

template <TensorType kType, size_t kRows>
[[gnu::always_inline]] inline void float_tile(const PackedLayout& layout, const std::byte* panel,
                                              size_t half, const float* x,
                                              __m256 (&sums)[kHalves<kRows>][kRows]) {
  constexpr size_t kPairBytes = kType == TensorType::kF32 ? 128 : 64;
  __m256 odd_sums[kHalves<kRows>][kRows] = {};
  size_t column = 0;
  for (; column + 2 <= layout.cols; column += 2, x += 2 * kRows) {
    if (half == 0) fetch_weights<kPairBytes>(panel + column / 2 * kPairBytes);
#pragma GCC unroll 2
    for (size_t i = 0; i < kHalves<kRows>; ++i) {
      const __m256 even = load_column<kType>(panel, column, half + i);
      const __m256 odd = load_column<kType>(panel, column + 1, half + i);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        sums[i][r] = _mm256_fmadd_ps(even, _mm256_set1_ps(x[r]), sums[i][r]);
        odd_sums[i][r] = _mm256_fmadd_ps(odd, _mm256_set1_ps(x[kRows + r]), odd_sums[i][r]);
      }
    }
  }
  for (size_t i = 0; i < kHalves<kRows>; ++i) {
    for (size_t r = 0; r < kRows; ++r) {
      if (column < layout.cols) {
        const __m256 last = load_column<kType>(panel, column, half + i);
        sums[i][r] = _mm256_fmadd_ps(last, _mm256_set1_ps(x[r]), sums[i][r]);
      }
      sums[i][r] = _mm256_add_ps(sums[i][r], odd_sums[i][r]);
    }
  }
}

template <TensorType kType, size_t kRows>
void decode_tile(const DecodeJob& job, size_t index, size_t row) {
  const std::byte* panel = job.panels + index * job.layout.panel_bytes;
  for (size_t half = 0; half < 2; half += kHalves<kRows>) {
    __m256 sums[kHalves<kRows>][kRows] = {};
    if constexpr (quant_format(kType).has_value()) {
      const ActivationBlock* x = job.x_codes + row * job.layout.blocks;
      quantized_tile<kType, kRows>(job.layout, panel, half, x, sums);
    } else {
      const float* x = job.x_float + row * job.layout.cols;
      float_tile<kType, kRows>(job.layout, panel, half, x, sums);
    }
    for (size_t i = 0; i < kHalves<kRows>; ++i) {
      for (size_t r = 0; r < kRows; ++r) {
        write_half(job.out, row + r, index * kPanelRows + 8 * (half + i), sums[i][r]);
      }
    }
  }
}

template <TensorType kType>
void decode_panels(const DecodeJob& job) {
  for (size_t panel = job.panel_begin; panel < job.panel_end; ++panel) {
    for (size_t row = 0, tile = 0; row < job.rows; row += tile) {
      tile = row_tile(job.rows - row);
      if (tile == 8) decode_tile<kType, 8>(job, panel, row);
      if (tile == 4) decode_tile<kType, 4>(job, panel, row);
      if (tile == 2) decode_tile<kType, 2>(job, panel, row);
      if (tile == 1) decode_tile<kType, 1>(job, panel, row);
    }
  }
}

}  // namespace

void decode_avx2(const DecodeJob& job) {
  if (job.layout.type == TensorType::kF32) return decode_panels<TensorType::kF32>(job);
  if (job.layout.type == TensorType::kF16) return decode_panels<TensorType::kF16>(job);
  if (job.layout.type == TensorType::kBF16) return decode_panels<TensorType::kBF16>(job);
  for_quantized(job.layout.type, [&](auto type) { decode_panels<decltype(type)::value>(job); });
}

void round_codes_avx2(const float* x, size_t blocks, size_t tile_rows, ActivationBlock* out) {
  for (size_t block = 0; block < blocks; ++block, x += kBlockCols, out += tile_rows) {
    const RoundedBlock rounded(x, 127.0f);
    out->scale = rounded.scale;
    __m256i rest[4];
    for (size_t i = 0; i < 4; ++i) {
      const __m256 left = _mm256_sub_ps(rounded.values[i], _mm256_cvtepi32_ps(rounded.q[i]));
      rest[i] = _mm256_cvtps_epi32(_mm256_mul_ps(left, _mm256_set1_ps(1 / kRestUnit)));
    }
    int32_t sums[2], rest_sums[2];
    store_codes(rounded.q, out->q, sums);
    store_codes(rest, out->rest, rest_sums);
    set_sums(sums, rest_sums, out);
  }
}

}  // namespace reprise::kernels

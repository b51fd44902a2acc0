#include <immintrin.h>

#include "kernels/codes_avx512.h"
#include "kernels/matmul_isa.h"
#include "kernels/output_avx512.h"

namespace reprise::kernels {
namespace {

inline int32_t word(const int8_t* q, size_t index) {
  int32_t w;
  __builtin_memcpy(&w, q + 4 * index, sizeof w);
  return w;
}

// Weights are asked for once, so many bytes before they are multiplied: nearer, or again on their
// way to the first cache, those that no cache holds come at 0.7 to 0.8 of the speed, as a core
// waits for few lines at a time.
struct IntoFirstCache {
  static constexpr size_t kAhead = 20480;
  static constexpr int kLocality = 3;
};
struct IntoSecondCache {
  static constexpr size_t kAhead = 14336;
  static constexpr int kLocality = 2;
};

template <class Fetch, TensorType kType, size_t kRows>
void quantized_tile(const PackedLayout& layout, const std::byte* panel, const ActivationBlock* x,
                    __m512 (&sums)[kRows]) {
  constexpr QuantFormat kFormat = *quant_format(kType);
  constexpr size_t kGroups = ScaleReader<kType>::kGroups, kWords = 8 / kGroups;
  constexpr size_t kBlockBytes = block_bytes(kFormat);
  const std::byte* plane = panel + layout.codes_offset;
  ScaleReader<kType> scales(panel, 0);
  const __m512 rest_unit = _mm512_set1_ps(kRestUnit);
  for (size_t block = 0; block < layout.blocks; ++block, x += kRows) {
    prefetch_weights<kBlockBytes, Fetch::kAhead, Fetch::kLocality>(panel + block * kBlockBytes);
    __m512i codes[8];
    load_codes<kType>(plane, codes);
    plane += code_bytes(kFormat);
    __m512 scale[kGroups], min[kGroups];
    scales.next(scale, min);
    for (size_t g = 0; g < kGroups; ++g) {
      const size_t part = kGroups == 1 ? 2 : g;
      for (size_t r = 0; r < kRows; ++r) {
        __m512i dot = _mm512_setzero_si512(), rest = dot;
        if constexpr (kFormat.zero_shift > 0) {
          dot = _mm512_slli_epi32(_mm512_set1_epi32(x[r].neg_sum[part]), kFormat.zero_shift);
          rest = _mm512_slli_epi32(_mm512_set1_epi32(x[r].neg_rest_sum[part]), kFormat.zero_shift);
        }
        for (size_t j = g * kWords; j < (g + 1) * kWords; ++j) {
          dot = _mm512_dpbusd_epi32(dot, codes[j], _mm512_set1_epi32(word(x[r].q, j)));
          rest = _mm512_dpbusd_epi32(rest, codes[j], _mm512_set1_epi32(word(x[r].rest, j)));
        }
        const __m512 unit = _mm512_mul_ps(scale[g], _mm512_set1_ps(x[r].scale));
        const __m512 both =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(rest), rest_unit, _mm512_cvtepi32_ps(dot));
        sums[r] = _mm512_fmadd_ps(both, unit, sums[r]);
        if constexpr (kFormat.has_min) {
          sums[r] = _mm512_fmadd_ps(min[g], _mm512_set1_ps(x[r].sum[part]), sums[r]);
        }
      }
    }
  }
}

// 16 weights of one column and of the next, in float.
template <TensorType kType>
inline void load_columns(const std::byte* at, __m512& even, __m512& odd) {
  if constexpr (kType == TensorType::kF32) {
    even = _mm512_load_ps(at);
    odd = _mm512_load_ps(at + 64);
  } else if constexpr (kType == TensorType::kF16) {
    even = load_halves(at);
    odd = load_halves(at + 32);
  } else {
    const __m512i pairs = _mm512_load_si512(at);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
  }
}

template <TensorType kType>
inline __m512 load_last_column(const std::byte* at) {
  if constexpr (kType == TensorType::kF32) return _mm512_load_ps(at);
  if constexpr (kType == TensorType::kF16) return load_halves(at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_load_si512(at), 16));
}

template <class Fetch, TensorType kType, size_t kRows>
void float_tile(const PackedLayout& layout, const std::byte* panel, const float* x,
                __m512 (&sums)[kRows]) {
  constexpr size_t kPairBytes = kType == TensorType::kF32 ? 128 : 64;
  __m512 odd_sums[kRows];
  for (__m512& sum : odd_sums) sum = _mm512_setzero_ps();
  __m512 even, odd;
  for (size_t pair = 0; pair < layout.cols / 2; ++pair, panel += kPairBytes, x += 2 * kRows) {
    prefetch_weights<kPairBytes, Fetch::kAhead, Fetch::kLocality>(panel);
    load_columns<kType>(panel, even, odd);
    for (size_t r = 0; r < kRows; ++r) {
      sums[r] = _mm512_fmadd_ps(even, _mm512_set1_ps(x[r]), sums[r]);
      odd_sums[r] = _mm512_fmadd_ps(odd, _mm512_set1_ps(x[kRows + r]), odd_sums[r]);
    }
  }
  if (layout.cols % 2 == 1) {
    even = load_last_column<kType>(panel);
    for (size_t r = 0; r < kRows; ++r) {
      sums[r] = _mm512_fmadd_ps(even, _mm512_set1_ps(x[r]), sums[r]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) sums[r] = _mm512_add_ps(sums[r], odd_sums[r]);
}

template <class Fetch, TensorType kType, size_t kRows>
void decode_tile(const DecodeJob& job, size_t index, size_t row) {
  const std::byte* panel = job.panels + index * job.layout.panel_bytes;
  __m512 sums[kRows];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  if constexpr (quant_format(kType).has_value()) {
    quantized_tile<Fetch, kType>(job.layout, panel, job.x_codes + row * job.layout.blocks, sums);
  } else {
    float_tile<Fetch, kType>(job.layout, panel, job.x_float + row * job.layout.cols, sums);
  }
  for (size_t r = 0; r < kRows; ++r) write_panel(job.out, row + r, index * kPanelRows, sums[r]);
}

// Lines that sums go to are in the cache of the thread that read them last: asked for only when
// they are written, they hold up all that is written after them.
inline void claim_output(const DecodeJob& job, size_t panel) {
  for (size_t row = 0; row < job.rows; ++row) {
    __builtin_prefetch(job.out.data + row * job.out.stride + panel * kPanelRows, 1);
  }
}

template <class Fetch, TensorType kType>
void decode_panels(const DecodeJob& job) {
  constexpr size_t kClaimed = 4;  // panels ahead
  size_t claimed = job.panel_begin;
  for (size_t panel = job.panel_begin; panel < job.panel_end; ++panel) {
    for (; claimed < job.panel_end && claimed <= panel + kClaimed; ++claimed) {
      claim_output(job, claimed);
    }
    for (size_t row = 0, tile = 0; row < job.rows; row += tile) {
      tile = row_tile(job.rows - row);
      if (tile == 8) decode_tile<Fetch, kType, 8>(job, panel, row);
      if (tile == 4) decode_tile<Fetch, kType, 4>(job, panel, row);
      if (tile == 2) decode_tile<Fetch, kType, 2>(job, panel, row);
      if (tile == 1) decode_tile<Fetch, kType, 1>(job, panel, row);
    }
  }
}

template <class Fetch>
void decode_all(const DecodeJob& job) {
  if (job.layout.type == TensorType::kF32) return decode_panels<Fetch, TensorType::kF32>(job);
  if (job.layout.type == TensorType::kF16) return decode_panels<Fetch, TensorType::kF16>(job);
  if (job.layout.type == TensorType::kBF16) return decode_panels<Fetch, TensorType::kBF16>(job);
  for_quantized(job.layout.type,
                [&](auto type) { decode_panels<Fetch, decltype(type)::value>(job); });
}

}  // namespace

void decode_avx512(const DecodeJob& job) { decode_all<IntoFirstCache>(job); }
void decode_avx512_beside_amx(const DecodeJob& job) { decode_all<IntoSecondCache>(job); }

void round_codes_avx512(const float* x, size_t blocks, size_t tile_rows, ActivationBlock* out) {
  for (size_t block = 0; block < blocks; ++block, x += kBlockCols, out += tile_rows) {
    const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
    const float largest =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
    const __m512 inverse = _mm512_set1_ps(largest > kSmallestMagnitude ? 127.0f / largest : 0.0f);
    out->scale = largest / 127.0f;
    const __m512 values[2] = {_mm512_mul_ps(low, inverse), _mm512_mul_ps(high, inverse)};
    int32_t sums[2], rest_sums[2];
    for (size_t half = 0; half < 2; ++half) {
      const __m512i q = _mm512_cvtps_epi32(values[half]);
      const __m512 left = _mm512_sub_ps(values[half], _mm512_cvtepi32_ps(q));
      const __m512i rest = _mm512_cvtps_epi32(_mm512_mul_ps(left, _mm512_set1_ps(1 / kRestUnit)));
      _mm_store_si128(reinterpret_cast<__m128i*>(out->q) + half, _mm512_cvtsepi32_epi8(q));
      _mm_store_si128(reinterpret_cast<__m128i*>(out->rest) + half, _mm512_cvtsepi32_epi8(rest));
      sums[half] = _mm512_reduce_add_epi32(q);
      rest_sums[half] = _mm512_reduce_add_epi32(rest);
    }
    set_sums(sums, rest_sums, out);
  }
}

}  // namespace reprise::kernels

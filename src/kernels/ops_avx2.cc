#include "kernels/ops_isa.h"
#include "kernels/simd_avx2.h"

namespace reprise::kernels {
namespace {

void rms_norm_256(const float* x, const float* weight, float eps, size_t n, float* out) {
  __m256 sum = _mm256_setzero_ps();
  for_vectors(n, [&](size_t i, auto lanes) {
    const __m256 value = lanes.load(x + i);
    sum = _mm256_fmadd_ps(value, value, sum);
  });
  const float mean = sum_256(sum) / static_cast<float>(n);
  const __m256 inverse = _mm256_set1_ps(1.0f / __builtin_sqrtf(mean + eps));
  for_vectors(n, [&](size_t i, auto lanes) {
    __m256 value = _mm256_mul_ps(lanes.load(x + i), inverse);
    if (weight != nullptr) value = _mm256_mul_ps(value, lanes.load(weight + i));
    lanes.store(out + i, value);
  });
}

void rope_256(float* x, const float* cos_sin, size_t heads, size_t head_dim, size_t pairs) {
  for (size_t head = 0; head < heads; ++head, x += head_dim) {
    for_vectors(2 * pairs, [&](size_t i, auto lanes) {
      const __m256 angle = lanes.load(cos_sin + i);
      const __m256 value = lanes.load(x + i);
      const __m256 swapped = _mm256_permute_ps(value, 0xb1);
      const __m256 sin_part = _mm256_mul_ps(swapped, _mm256_movehdup_ps(angle));
      lanes.store(x + i, _mm256_fmaddsub_ps(value, _mm256_moveldup_ps(angle), sin_part));
    });
  }
}

// x / (1 + e^-x)
inline __m256 silu(__m256 x) {
  const __m256 e = exp2_256(_mm256_mul_ps(x, _mm256_set1_ps(-1.44269504f)));
  return _mm256_div_ps(x, _mm256_add_ps(e, _mm256_set1_ps(1.0f)));
}

// Hendrycks & Gimpel 2016, tanh form; x/2 (1 + tanh(u)) = x / (1 + e^-2u)
inline __m256 gelu_tanh(__m256 x) {
  const __m256 cubic = _mm256_mul_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(0.044715f));
  const __m256 u = _mm256_fmadd_ps(cubic, x, x);
  // -2 sqrt(2/pi) / ln 2
  const __m256 e = exp2_256(_mm256_mul_ps(u, _mm256_set1_ps(-2.302208198f)));
  return _mm256_div_ps(x, _mm256_add_ps(e, _mm256_set1_ps(1.0f)));
}

void gated_activation_256(float* gate, const float* up, size_t n, Activation activation) {
  for_vectors(n, [&](size_t i, auto lanes) {
    const __m256 x = lanes.load(gate + i);
    const __m256 y = activation == Activation::kSilu ? silu(x) : gelu_tanh(x);
    lanes.store(gate + i, _mm256_mul_ps(y, lanes.load(up + i)));
  });
}

void soft_cap_256(float* x, size_t n, float cap) {
  for_vectors(
      n, [&](size_t i, auto lanes) { lanes.store(x + i, capped_256(lanes.load(x + i), cap)); });
}

void add_scaled_256(float* out, const float* x, float scale, size_t n) {
  const __m256 factor = _mm256_set1_ps(scale);
  for_vectors(n, [&](size_t i, auto lanes) {
    const __m256 sum = _mm256_fmadd_ps(lanes.load(x + i), factor, lanes.load(out + i));
    lanes.store(out + i, sum);
  });
}

void widen_256(const Bf16* x, size_t n, float* out) {
  const auto widened = [](__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  };
  size_t i = 0;
  for (; i + kLanes256 <= n; i += kLanes256) {
    _mm256_storeu_ps(out + i, widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  }
  widen_ref(x + i, n - i, out + i);
}

// Eight values, rounded to bf16 as to_bf16() does, in the lower halves.
inline __m256i rounded_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 either = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
  return _mm256_srli_epi32(_mm256_castps_si256(either), 16);
}

void widen_codes_256(const std::byte* codes, const std::byte* scales, size_t n, Bf16* out) {
  size_t i = 0;
  for (; i + kScaleValues <= n; i += kScaleValues, scales += sizeof(uint16_t)) {
    uint16_t scale;
    __builtin_memcpy(&scale, scales, sizeof scale);
    const __m256 factor = _mm256_set1_ps(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(scale))));
    const auto eight = [&](size_t at) {
      const __m128i narrow = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + at));
      const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(narrow));
      return rounded_bf16(_mm256_mul_ps(wide, factor));
    };
    for (size_t at = i; at < i + kScaleValues; at += 2 * kLanes256) {
      const __m256i both = _mm256_packus_epi32(eight(at), eight(at + kLanes256));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at),
                          _mm256_permute4x64_epi64(both, 0xd8));
    }
  }
  widen_codes_ref(codes + i, scales, n - i, out + i);
}

}  // namespace

RowOps row_ops_avx2() {
  return {rms_norm_256,   rope_256,  gated_activation_256, soft_cap_256,
          add_scaled_256, widen_256, widen_codes_256};
}

}  // namespace reprise::kernels

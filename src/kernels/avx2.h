// The intrinsics of AVX2, FMA and F16C. On AArch64 SIMDe makes two NEON instructions of one, or the
// few that come nearest.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

// SIMDe's round twice, and so would not give what _mm256_fmadd_ps() gives beside them.
#undef _mm256_fmsub_ps
#undef _mm256_fmaddsub_ps

namespace reprise::kernels {

static inline __m256 _mm256_fmsub_ps(__m256 a, __m256 b, __m256 c) {
  return _mm256_fmadd_ps(a, b, _mm256_xor_ps(c, _mm256_set1_ps(-0.0f)));
}

static inline __m256 _mm256_fmaddsub_ps(__m256 a, __m256 b, __m256 c) {
  const __m256 even = _mm256_setr_ps(-0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f);
  return _mm256_fmadd_ps(a, b, _mm256_xor_ps(c, even));
}

}  // namespace reprise::kernels
#endif

// One loop per instruction set; flops of an iteration beside it.
#pragma once

#include <cstddef>

namespace reprise::kernels {

void peak_scalar(size_t iterations);
void peak_avx2(size_t iterations);
void peak_avx512(size_t iterations);
void peak_amx(size_t iterations);

inline constexpr double kPeakScalarFlops = 2.0 * 8;
inline constexpr double kPeakAvx2Flops = 2.0 * 8 * 12;           // 12 FMA of 8 floats
inline constexpr double kPeakAvx512Flops = 4.0 * 16 * 24;        // 24 dot products of 16 bf16 pairs
inline constexpr double kPeakAmxFlops = 2.0 * 16 * 16 * 32 * 4;  // 4 tile products

}  // namespace reprise::kernels

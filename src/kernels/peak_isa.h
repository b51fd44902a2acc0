// Loops per instruction set, with the flops of an iteration; reads add up words [count].
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise::kernels {

void peak_scalar(size_t iterations);
void peak_avx2(size_t iterations);
void peak_int8_avx2(size_t iterations);
void peak_avx512(size_t iterations);
void peak_amx(size_t iterations);

uint64_t read_scalar(const uint64_t* words, size_t count);
uint64_t read_avx2(const uint64_t* words, size_t count);
uint64_t read_avx512(const uint64_t* words, size_t count);

inline constexpr double kPeakScalarFlops = 2.0 * 8;
inline constexpr double kPeakAvx2Flops = 2.0 * 8 * 12;           // 12 FMA of 8 floats
inline constexpr double kPeakInt8Avx2Flops = 4.0 * 16 * 12;      // 12 sums of 16 integer pairs
inline constexpr double kPeakAvx512Flops = 4.0 * 16 * 24;        // 24 dot products of 16 bf16 pairs
inline constexpr double kPeakAmxFlops = 2.0 * 16 * 16 * 32 * 4;  // 4 tile products

}  // namespace reprise::kernels

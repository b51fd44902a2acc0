#include "kernels/peak.h"

#include "kernels/cpu.h"
#include "kernels/peak_isa.h"

namespace reprise::kernels {
namespace {

struct PeakLoop {
  void (*run)(size_t iterations);
  double flops;  // of an iteration
  size_t iterations;
};

PeakLoop peak_loop(Products products) {
  const Isa isa = cpu_isa();
  if constexpr (kHighestIsa == Isa::kAmx) {
    if (isa == Isa::kAmx) return {peak_amx, kPeakAmxFlops, 100'000};
    if (isa == Isa::kAvx512) return {peak_avx512, kPeakAvx512Flops, 400'000};
  }
  if constexpr (kHighestIsa >= Isa::kAvx2) {
    const bool integers = products == Products::kQuantised;
    if (isa == Isa::kAvx2 && integers) return {peak_int8_avx2, kPeakInt8Avx2Flops, 800'000};
    if (isa == Isa::kAvx2) return {peak_avx2, kPeakAvx2Flops, 800'000};
  }
  return {peak_scalar, kPeakScalarFlops, 1'000'000};
}

}  // namespace

uint64_t read_scalar(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i < count; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
  }
  uint64_t sum = 0;
  for (const uint64_t lane : sums) sum += lane;
  return sum;
}

uint64_t read_all(const uint64_t* words, size_t count) {
  return form<read_scalar, read_avx2, read_avx512>()(words, count);
}

void peak_scalar(size_t iterations) {
  float sum[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  for (size_t i = 0; i < iterations; ++i) {
    for (float& s : sum) s = s * 0.5f + 0.25f;
  }
  for (const float s : sum) asm volatile("" ::"r"(s));  // keeps the loop
}

void run_peak(Products products) {
  const PeakLoop loop = peak_loop(products);
  loop.run(loop.iterations);
}

double peak_flops(Products products) {
  const PeakLoop loop = peak_loop(products);
  return loop.flops * static_cast<double>(loop.iterations);
}

}  // namespace reprise::kernels

// Instruction sets of this machine, found once by CPUID.
#pragma once

#include <string_view>

namespace reprise::kernels {

/// Ordered: each level includes the ones before it.
enum class Isa { kScalar, kAvx2, kAvx512, kAmx };  // kAvx512: F, BW, VL, DQ, VBMI, VNNI and BF16

/// Up to which there are kernels. Those of AVX2 are compiled for NEON, too (kernels/avx2.h).
#if defined(__x86_64__)
inline constexpr Isa kHighestIsa = Isa::kAmx;
#elif defined(__aarch64__)
inline constexpr Isa kHighestIsa = Isa::kAvx2;
#else
inline constexpr Isa kHighestIsa = Isa::kScalar;
#endif

/// The best level that CPU and kernel allow (kAmx asks the kernel for the tile state). The
/// environment variable REPRISE_ISA (scalar, avx2, avx512, amx; neon for kAvx2 on AArch64) can only
/// lower it.
Isa cpu_isa();
std::string_view isa_name(Isa isa);

/// Overrides cpu_isa() for the rest of the process or until reset with the former value; for tests,
/// which run every level against the scalar reference. Levels above the machine's are refused.
bool set_cpu_isa(Isa isa);

/// Of the forms of an operation the one for this machine. Those above kHighestIsa are not linked.
template <auto* scalar, auto* avx2, auto* avx512 = avx2, auto* amx = avx512>
auto* form() {
  const Isa isa = cpu_isa();
  if constexpr (kHighestIsa == Isa::kAmx) {
    if (isa == Isa::kAmx) return amx;
    if (isa == Isa::kAvx512) return avx512;
  }
  if constexpr (kHighestIsa >= Isa::kAvx2) {
    if (isa >= Isa::kAvx2) return avx2;
  }
  return scalar;
}

}  // namespace reprise::kernels

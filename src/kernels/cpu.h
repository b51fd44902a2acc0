// Instruction sets of this machine, found once by CPUID.
#pragma once

#include <string_view>

namespace reprise::kernels {

/// Ordered: each level includes the ones before it.
enum class Isa { kScalar, kAvx2, kAvx512, kAmx };  // kAvx512: F, BW, VL, DQ, VBMI, VNNI and BF16

/// The best level that CPU and kernel allow (kAmx asks the kernel for the tile state). The
/// environment variable REPRISE_ISA (scalar, avx2, avx512, amx) can only lower it.
Isa cpu_isa();
std::string_view isa_name(Isa isa);

/// Overrides cpu_isa() for the rest of the process or until reset with the former value; for tests,
/// which run every level against the scalar reference. Levels above the machine's are refused.
bool set_cpu_isa(Isa isa);

}  // namespace reprise::kernels

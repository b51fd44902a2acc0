#include "kernels/cpu.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace reprise::kernels {
namespace {

#if defined(__aarch64__)
constexpr std::string_view kAvx2Name = "neon";  // which its kernels are compiled for
#else
constexpr std::string_view kAvx2Name = "avx2";
#endif
constexpr std::array<std::string_view, 4> kNames = {"scalar", kAvx2Name, "avx512", "amx"};

#if defined(__x86_64__)

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
  return r;
}

bool has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

// Register state that the kernel saves at a context switch (Intel SDM vol. 1, 13.3).
uint32_t saved_state() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool request_tile_state() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Isa detect() {
  constexpr uint32_t kOsXsave = 1u << 27, kFma = 1u << 12, kF16c = 1u << 29;  // leaf 1 ecx
  const Registers basic = cpuid(1, 0);
  if (!has(basic.ecx, kOsXsave | kFma | kF16c)) return Isa::kScalar;
  const Registers extended = cpuid(7, 0), more = cpuid(7, 1);
  const uint32_t state = saved_state();
  constexpr uint32_t kYmm = 0x6, kZmm = 0xe0, kTiles = 0x60000;
  if (!has(extended.ebx, 1u << 5) || !has(state, kYmm)) return Isa::kScalar;
  constexpr uint32_t kAvx512Ebx = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  constexpr uint32_t kVbmiVnni = 1u << 1 | 1u << 11, kBf16 = 1u << 5;
  if (!has(extended.ebx, kAvx512Ebx) || !has(extended.ecx, kVbmiVnni) || !has(more.eax, kBf16) ||
      !has(state, kZmm)) {
    return Isa::kAvx2;
  }
  constexpr uint32_t kAmx = 1u << 22 | 1u << 24 | 1u << 25;  // BF16, TILE, INT8
  if (!has(extended.edx, kAmx) || !has(state, kTiles) || !request_tile_state()) {
    return Isa::kAvx512;
  }
  return Isa::kAmx;
}

#else

Isa detect() { return kHighestIsa; }  // NEON is part of every AArch64

#endif

Isa machine_isa() {
  static const Isa isa = detect();
  return isa;
}

Isa initial_isa() {
  const char* wanted = std::getenv("REPRISE_ISA");
  const auto* name = wanted ? std::find(kNames.begin(), kNames.end(), wanted) : kNames.end();
  if (name == kNames.end()) return machine_isa();
  return std::min(machine_isa(), static_cast<Isa>(name - kNames.begin()));
}

std::atomic<Isa>& current_isa() {
  static std::atomic<Isa> isa = initial_isa();
  return isa;
}

}  // namespace

Isa cpu_isa() { return current_isa().load(std::memory_order_relaxed); }

std::string_view isa_name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

bool set_cpu_isa(Isa isa) {
  if (isa > machine_isa()) return false;
  current_isa().store(isa, std::memory_order_relaxed);
  return true;
}

}  // namespace reprise::kernels

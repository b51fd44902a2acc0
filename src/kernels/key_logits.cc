#include "kernels/key_logits.h"

#include "kernels/cpu.h"
#include "kernels/key_logits_isa.h"

namespace reprise::kernels {

void key_logits(const KeyLogitsArgs& args) {
#if defined(__x86_64__)
  if (cpu_isa() >= Isa::kAvx512) return key_logits_avx512(args);
  if (cpu_isa() >= Isa::kAvx2) return key_logits_avx2(args);
#endif
  key_logits_ref(args);
}

void key_bounds(const KvLayout& layout, const std::byte* k_tile, uint16_t slots, float* low,
                float* high) {
#if defined(__x86_64__)
  if (cpu_isa() >= Isa::kAvx512) return key_bounds_avx512(layout, k_tile, slots, low, high);
  if (cpu_isa() >= Isa::kAvx2) return key_bounds_avx2(layout, k_tile, slots, low, high);
#endif
  key_bounds_ref(layout, k_tile, slots, low, high);
}

}  // namespace reprise::kernels

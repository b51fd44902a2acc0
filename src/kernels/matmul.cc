#include "kernels/matmul.h"

#include "kernels/matmul_isa.h"
#include "kernels/matmul_phase.h"

namespace reprise::kernels {
const MatmulKernels& matmul_kernels(Isa isa) {
  static constexpr MatmulKernels kRef = {round_int8_ref, decode_ref,   round_bf16_ref,
                                         expand_ref,     multiply_ref, write_ref};
#if defined(__x86_64__)
  static constexpr MatmulKernels kAvx2 = {round_int8_avx2, decode_avx2,   round_bf16_avx2,
                                          expand_avx2,     multiply_avx2, write_avx2};
  static constexpr MatmulKernels kAvx512 = {round_int8_avx512, decode_avx512,   round_bf16_avx512,
                                            expand_avx512,     multiply_avx512, write_avx512};
  static constexpr MatmulKernels kAmx = {round_int8_avx512, decode_avx512, round_bf16_avx512,
                                         expand_avx512,     multiply_amx,  write_avx512};
  if (isa == Isa::kAmx) return kAmx;
  if (isa == Isa::kAvx512) return kAvx512;
  if (isa == Isa::kAvx2) return kAvx2;
#endif
  return kRef;
}

void matmul(std::span<const Projection> projections, const float* x, size_t rows, size_t x_stride,
            Phase phase, ThreadPool& pool, MatmulScratch& scratch) {
  if (rows == 0) return;
  const MatmulInput input{x, rows, x_stride, &matmul_kernels(cpu_isa()), &pool, &scratch};
  if (phase == Phase::kDecode) return decode(projections, input);
  std::vector<Projection> exact, rounded;  // F32 weights stay float
  for (const Projection& p : projections) {
    (p.weight->type() == TensorType::kF32 ? exact : rounded).push_back(p);
  }
  if (!exact.empty()) decode(exact, input);
  if (!rounded.empty()) prefill(rounded, input);
}

}  // namespace reprise::kernels

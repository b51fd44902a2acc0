#include "kernels/matmul.h"

#include "kernels/for_rows.h"
#include "kernels/matmul_isa.h"
#include "kernels/matmul_phase.h"

namespace reprise::kernels {
const MatmulKernels& matmul_kernels([[maybe_unused]] Isa isa) {
  static constexpr size_t kBf16 = kTileElements * sizeof(uint16_t), kIntegers = sizeof(WeightTile);
  static_assert(sizeof(ActivationTile) == kIntegers);
  static constexpr MatmulKernels kRef = {
      round_codes_ref,
      decode_ref,
      {kBf16, kVectorSteps, round_bf16_ref, expand_ref, multiply_ref},
      {kIntegers, kVectorSteps, round_integers_ref, expand_integers_ref, multiply_integers_ref},
      write_ref,
      nullptr};
#if defined(__x86_64__)
  static constexpr MatmulKernels kAvx2 = {
      round_codes_avx2,
      decode_avx2,
      {kBf16, kVectorSteps, round_bf16_avx2, expand_avx2, multiply_avx2},
      {kIntegers, kVectorSteps, round_integers_avx2, expand_integers_avx2, multiply_integers_avx2},
      write_avx2,
      nullptr};
  static constexpr PrefillForm kVectors = {kBf16, kVectorSteps, round_bf16_avx512, expand_avx512,
                                           multiply_avx512};
  static constexpr MatmulKernels kAvx512 = {round_codes_avx512, decode_avx512, kVectors,
                                            kVectors,           write_avx512,  write_gated_avx512};
  static constexpr size_t kTileSteps = 12;  // whose tiles and the next ones fit the first cache
  static constexpr PrefillForm kTiles = {
      kBf16,        kTileSteps,         round_bf16_avx512, expand_avx512,
      multiply_amx, begin_multiply_amx, end_multiply_amx,  expand_part_avx512};
  static constexpr MatmulKernels kAmx = {
      round_codes_avx512, decode_avx512_beside_amx, kTiles, kTiles,
      write_avx512,       write_gated_avx512};
  if (isa == Isa::kAmx) return kAmx;
  if (isa == Isa::kAvx512) return kAvx512;
  if (isa == Isa::kAvx2) return kAvx2;
#endif
  return kRef;
}

namespace {

// The input with its norm applied, as rows of floats.
MatmulInput normalise(MatmulInput input, size_t cols) {
  if (input.norm.weight == nullptr) return input;
  auto* out = reserve<float>(input.scratch->normalised, input.rows * cols);
  for_rows(*input.pool, input.rows, cols, [&](size_t row) {
    const float* x = input.x + row * input.stride;
    rms_norm(x, input.norm.weight, input.norm.eps, cols, out + row * cols);
  });
  input.x = out;
  input.stride = cols;
  input.norm = {};
  return input;
}

void multiply(std::span<const Projection> projections, const MatmulInput& input, Phase phase) {
  if (phase == Phase::kDecode) {
    return decode(projections, normalise(input, projections.front().weight->cols()));
  }
  std::vector<Projection> exact, floats, quantised;  // F32 weights stay float
  for (const Projection& p : projections) {
    const TensorType type = p.weight->type();
    (type == TensorType::kF32 ? exact : quant_format(type) ? quantised : floats).push_back(p);
  }
  if (!floats.empty()) prefill(floats, input.kernels->floats, input);
  if (!quantised.empty()) prefill(quantised, input.kernels->quantised, input);
  if (!exact.empty()) decode(exact, normalise(input, exact.front().weight->cols()));
}

bool is_fused(const GatedMlp& mlp, const MatmulInput& input, Phase phase) {
  if (phase == Phase::kDecode || input.kernels->write_gated == nullptr) return false;
  for (const Projection* p : {&mlp.gate, &mlp.up, &mlp.down}) {
    if (p->weight->type() == TensorType::kF32) return false;
  }
  return mlp.gate.bias == nullptr && mlp.up.bias == nullptr;
}

}  // namespace

void matmul(std::span<const Projection> projections, const MatmulRows& x, Phase phase,
            ThreadPool& pool, MatmulScratch& scratch) {
  if (x.rows == 0) return;
  multiply(projections, {x, &matmul_kernels(cpu_isa()), &pool, &scratch}, phase);
}

void gated_mlp(const GatedMlp& mlp, const MatmulRows& x, Phase phase, ThreadPool& pool,
               MatmulScratch& scratch) {
  if (x.rows == 0) return;
  MatmulInput input{x, &matmul_kernels(cpu_isa()), &pool, &scratch};
  if (is_fused(mlp, input, phase)) return prefill_mlp(mlp, input);
  const size_t width = mlp.gate.weight->rows();
  auto* gate = reserve<float>(scratch.gated, 2 * x.rows * width);
  Projection inner[] = {mlp.gate, mlp.up};
  inner[0].out = gate;
  inner[1].out = gate + x.rows * width;
  for (Projection& p : inner) p.out_stride = width;
  multiply(inner, input, phase);
  for_rows(pool, x.rows, width, [&](size_t row) {
    gated_activation(gate + row * width, inner[1].out + row * width, width, mlp.activation);
  });
  input = {{gate, x.rows, width}, input.kernels, &pool, &scratch};
  multiply({&mlp.down, 1}, input, phase);
}

}  // namespace reprise::kernels

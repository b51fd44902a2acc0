#include "kernels/matmul.h"

#include <map>

#include "kernels/for_rows.h"
#include "kernels/integer_tiles.h"
#include "kernels/matmul_isa.h"
#include "kernels/matmul_phase.h"

namespace reprise::kernels {
const MatmulKernels& matmul_kernels([[maybe_unused]] Isa isa) {
  static constexpr size_t kBf16 = kTileElements * sizeof(uint16_t);
  static constexpr size_t kInt8X = sizeof(Int8Activations), kInt8W = sizeof(Int8Weights);
  static constexpr size_t kInt16X = sizeof(Int16Activations), kInt16W = sizeof(Int16Weights);
  if constexpr (kHighestIsa == Isa::kAmx) {
    static constexpr PrefillForm kVectors = {
        kBf16, kBf16, kVectorSteps, round_bf16_avx512, expand_avx512, multiply_avx512};
    static constexpr MatmulKernels kAvx512 = {round_codes_avx512, decode_avx512, &kVectors,
                                              &kVectors,          &kVectors,     write_avx512,
                                              write_gated_avx512};
    static constexpr size_t kTileSteps = 12;  // whose tiles and the next ones fit the first cache
    static constexpr PrefillForm kTiles = {kBf16,
                                           kBf16,
                                           kTileSteps,
                                           round_bf16_avx512,
                                           expand_avx512,
                                           multiply_amx,
                                           begin_multiply_amx,
                                           end_multiply_amx,
                                           expand_part_avx512};
    static constexpr MatmulKernels kAmx = {
        round_codes_avx512, decode_avx512_beside_amx, &kTiles, &kTiles, &kTiles,
        write_avx512,       write_gated_avx512};
    if (isa == Isa::kAmx) return kAmx;
    if (isa == Isa::kAvx512) return kAvx512;
  }
  if constexpr (kHighestIsa >= Isa::kAvx2) {
    static constexpr PrefillForm kFloat = {kBf16,           kBf16,       kVectorSteps,
                                           round_bf16_avx2, expand_avx2, multiply_avx2};
    static constexpr PrefillForm kInt8 = {kInt8X,          kInt8W,           kVectorSteps,
                                          round_int8_avx2, expand_int8_avx2, multiply_int8_avx2};
    static constexpr PrefillForm kInt16 = {
        kInt16X, kInt16W, kVectorSteps, round_int16_avx2, expand_int16_avx2, multiply_int16_avx2};
    static constexpr MatmulKernels kAvx2 = {round_codes_avx2, decode_avx2, &kFloat, &kInt8,
                                            &kInt16,          write_avx2,  nullptr};
    if (isa == Isa::kAvx2) return kAvx2;
  }
  static constexpr PrefillForm kFloat = {kBf16,          kBf16,      kVectorSteps,
                                         round_bf16_ref, expand_ref, multiply_ref};
  static constexpr PrefillForm kInt8 = {kInt8X,         kInt8W,          kVectorSteps,
                                        round_int8_ref, expand_int8_ref, multiply_int8_ref};
  static constexpr PrefillForm kInt16 = {kInt16X,         kInt16W,          kVectorSteps,
                                         round_int16_ref, expand_int16_ref, multiply_int16_ref};
  static constexpr MatmulKernels kRef = {round_codes_ref, decode_ref, &kFloat, &kInt8,
                                         &kInt16,         write_ref,  nullptr};
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
  const MatmulKernels& kernels = *input.kernels;
  std::vector<Projection> exact;  // F32 weights stay float
  std::map<const PrefillForm*, std::vector<Projection>> rounded;
  for (const Projection& p : projections) {
    const auto format = quant_format(p.weight->type());
    const PrefillForm* form = !format               ? kernels.floats
                              : takes_int8(*format) ? kernels.int8
                                                    : kernels.int16;
    (p.weight->type() == TensorType::kF32 ? exact : rounded[form]).push_back(p);
  }
  for (const auto& [form, same] : rounded) prefill(same, *form, input);
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

#include "kernels/ops.h"

#include "kernels/cpu.h"
#include "kernels/ops_isa.h"

namespace reprise::kernels {
namespace {

RowOps row_ops_ref() {
  return {rms_norm_ref,   rope_ref,  gated_activation_ref, soft_cap_ref,
          add_scaled_ref, widen_ref, widen_codes_ref};
}

RowOps row_ops() { return form<row_ops_ref, row_ops_avx2, row_ops_avx512>()(); }

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, size_t n, float* out) {
  row_ops().rms_norm(x, weight, eps, n, out);
}

void rope(float* x, const float* cos_sin, size_t heads, size_t head_dim, size_t pairs) {
  row_ops().rope(x, cos_sin, heads, head_dim, pairs);
}

void gated_activation(float* gate, const float* up, size_t n, Activation activation) {
  row_ops().gated_activation(gate, up, n, activation);
}

void soft_cap(float* x, size_t n, float cap) { row_ops().soft_cap(x, n, cap); }

void add_scaled(float* out, const float* x, float scale, size_t n) {
  row_ops().add_scaled(out, x, scale, n);
}

void widen(const Bf16* x, size_t n, float* out) { row_ops().widen(x, n, out); }

void widen_codes(const std::byte* codes, const std::byte* scales, size_t n, Bf16* out) {
  row_ops().widen_codes(codes, scales, n, out);
}

}  // namespace reprise::kernels

// The row-wise operations of one instruction set each; chosen in ops.cc.
#pragma once

#include "kernels/ops.h"

namespace reprise::kernels {

struct RowOps {
  void (*rms_norm)(const float* x, const float* weight, float eps, size_t n, float* out);
  void (*rope)(float* x, const float* cos_sin, size_t heads, size_t head_dim, size_t pairs);
  void (*gated_activation)(float* gate, const float* up, size_t n, Activation activation);
  void (*soft_cap)(float* x, size_t n, float cap);
  void (*add_scaled)(float* out, const float* x, float scale, size_t n);
  void (*widen)(const Bf16* x, size_t n, float* out);
  void (*widen_codes)(const std::byte* codes, const std::byte* scales, size_t n, Bf16* out);
};

void rms_norm_ref(const float* x, const float* weight, float eps, size_t n, float* out);
void rope_ref(float* x, const float* cos_sin, size_t heads, size_t head_dim, size_t pairs);
void gated_activation_ref(float* gate, const float* up, size_t n, Activation activation);
void soft_cap_ref(float* x, size_t n, float cap);
void add_scaled_ref(float* out, const float* x, float scale, size_t n);
void widen_ref(const Bf16* x, size_t n, float* out);
void widen_codes_ref(const std::byte* codes, const std::byte* scales, size_t n, Bf16* out);

// Relative error of exp below 4e-7, absolute error of tanh below 4e-7.
RowOps row_ops_avx2();
RowOps row_ops_avx512();

}  // namespace reprise::kernels

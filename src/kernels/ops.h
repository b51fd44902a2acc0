// Row-wise operations of the model graph. Rows are independent; every function is called from
// inside a parallel region or on few rows. Scalar reference in ops_ref.cc, vector code per ISA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float16.h"

namespace reprise::kernels {

enum class Activation { kSilu, kGeluTanh };

/// out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i], i < n. In place allowed. weight may be null
/// (then 1). Zhang & Sennrich 2019, eq. 4.
void rms_norm(const float* x, const float* weight, float eps, size_t n, float* out);

/// Rotates adjacent pairs: (x[2i], x[2i+1]) by angle i for i < pairs; the rest is left alone.
/// cos_sin is [pairs][2]. x is [heads, head_dim]. Su et al. 2021, eq. 34 (interleaved order).
void rope(float* x, const float* cos_sin, size_t heads, size_t head_dim, size_t pairs);

/// gate[i] = act(gate[i]) * up[i]
void gated_activation(float* gate, const float* up, size_t n, Activation activation);

/// x[i] = cap * tanh(x[i] / cap)
void soft_cap(float* x, size_t n, float cap);

/// out[i] += x[i] * scale
void add_scaled(float* out, const float* x, float scale, size_t n);

/// out[i] = x[i]
void widen(const Bf16* x, size_t n, float* out);

/// Values that share a scale.
inline constexpr size_t kScaleValues = 32;
/// out[i] = codes[i] * scales[i / kScaleValues], rounded: codes are int8, scales f16, at any
/// addresses.
void widen_codes(const std::byte* codes, const std::byte* scales, size_t n, Bf16* out);

}  // namespace reprise::kernels

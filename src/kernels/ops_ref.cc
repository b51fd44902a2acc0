#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/ops_isa.h"

namespace reprise::kernels {

void rms_norm_ref(const float* x, const float* weight, float eps, size_t n, float* out) {
  float sum = 0.0f;
  for (size_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  for (size_t i = 0; i < n; ++i) out[i] = x[i] * inverse * (weight != nullptr ? weight[i] : 1.0f);
}

void rope_ref(float* x, const float* cos_sin, size_t heads, size_t head_dim, size_t pairs) {
  for (size_t head = 0; head < heads; ++head, x += head_dim) {
    for (size_t i = 0; i < pairs; ++i) {
      const float cos = cos_sin[2 * i], sin = cos_sin[2 * i + 1];
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos - b * sin;
      x[2 * i + 1] = a * sin + b * cos;
    }
  }
}

void gated_activation_ref(float* gate, const float* up, size_t n, Activation activation) {
  // Hendrycks & Gimpel 2016, the tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
  const float root = std::sqrt(2.0f * std::numbers::inv_pi_v<float>);
  for (size_t i = 0; i < n; ++i) {
    const float x = gate[i];
    const float y = activation == Activation::kSilu
                        ? x / (1.0f + std::exp(-x))
                        : 0.5f * x * (1.0f + std::tanh(root * (x + 0.044715f * x * x * x)));
    gate[i] = y * up[i];
  }
}

void soft_cap_ref(float* x, size_t n, float cap) {
  for (size_t i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

void add_scaled_ref(float* out, const float* x, float scale, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] += x[i] * scale;
}

void widen_ref(const Bf16* x, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = to_float(x[i]);
}

void widen_codes_ref(const std::byte* codes, const std::byte* scales, size_t n, Bf16* out) {
  F16 scale;
  for (size_t i = 0; i < n; ++i) {
    std::memcpy(&scale, scales + i / kScaleValues * sizeof scale, sizeof scale);
    out[i] = to_bf16(static_cast<float>(static_cast<int8_t>(codes[i])) * to_float(scale));
  }
}

}  // namespace reprise::kernels

// Pages for tests, and the values that they hold, read one at a time.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "kernels/cuda/kv_tile.h"

namespace reprise::kernels::cuda {

// The values of the e4m3 codes (OCP 8-bit floating point, 5.1).
inline std::array<double, 256> e4m3_values() {
  std::array<double, 256> values;
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    double value =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if ((code & 0x7f) == 0x7f) value = std::numeric_limits<double>::quiet_NaN();
    values[static_cast<size_t>(code)] = code < 128 ? value : -value;
  }
  return values;
}

inline std::vector<float> bf16_floats(const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (const uint16_t value : bits) values.push_back(to_float(Bf16{value}));
  return values;
}

/// K and V tiles, one after another.
class TestTiles {
 public:
  TestTiles(KvType type, uint32_t head_dim, size_t tiles)
      : type_(type), dim_(head_dim), bytes_(tiles * tile_bytes(type, head_dim)) {}

  /// Normal values. kFP8: any codes; scales of K near 2^-7, those of V from 2^(v_power - 19) to
  /// 2^(v_power - 6), some zero.
  void fill(std::mt19937& random, float v_power = 0.0f) {
    std::vector<uint32_t> noise(4096 + dim_);
    for (uint32_t& bits : noise) bits = random_element(random);
    const size_t tiles = bytes_.size() / tile_bytes(type_, dim_);
    for (size_t i = 0; i < tiles * kPageTokens; ++i) {
      const size_t tile = i / kPageTokens;
      const auto token = static_cast<uint32_t>(i % kPageTokens);
      const uint32_t* from = &noise[random() % 4096];
      for (uint32_t dim = 0; dim < dim_; ++dim) {
        std::memcpy(&bytes_[place(tile, element_offset(type_, dim_, token, dim))], from + dim,
                    element_bytes(type_));
      }
      if (type_ != KvType::kFP8) continue;
      // The root mean square of all codes is 110.
      const float lowest = tile % 2 == 0 ? -3.0f : -12.0f, shift = tile % 2 == 0 ? 0.0f : v_power;
      const float power = std::uniform_real_distribution<float>(lowest, 1.0f)(random) + shift;
      set_scale(tile, token, random() % 16 == 0 ? 0.0f : std::exp2(power) / 110.0f);
    }
  }

  /// kFP8: a token that nobody may read gets an enormous scale.
  void spoil(size_t tile, uint32_t token) {
    if (type_ == KvType::kFP8) set_scale(tile, token, 1e38f);
  }

  double value(size_t tile, uint32_t token, uint32_t dim) const {
    const uint8_t* from = &bytes_[place(tile, element_offset(type_, dim_, token, dim))];
    if (type_ == KvType::kFP8) return values_[*from] * double{scale(tile, token)};
    if (type_ == KvType::kF32) {
      float value = 0.0f;
      std::memcpy(&value, from, sizeof value);
      return value;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof bits);
    return type_ == KvType::kBF16 ? to_float(Bf16{bits}) : to_float(F16{bits});
  }

  float scale(size_t tile, uint32_t token) const {
    float scale = 0.0f;
    std::memcpy(&scale, &bytes_[place(tile, fp8_scale_offset(dim_, token))], sizeof scale);
    return scale;
  }

  const std::vector<uint8_t>& bytes() const { return bytes_; }
  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  size_t place(size_t tile, uint32_t offset) const {
    return tile * tile_bytes(type_, dim_) + offset;
  }
  void set_scale(size_t tile, uint32_t token, float scale) {
    std::memcpy(&bytes_[place(tile, fp8_scale_offset(dim_, token))], &scale, sizeof scale);
  }

  // Its low bits.
  uint32_t random_element(std::mt19937& random) const {
    if (type_ == KvType::kFP8) {
      const auto code = static_cast<uint32_t>(random() & 0xff);
      return (code & 0x7f) == 0x7f ? 0 : code;
    }
    const float value = std::normal_distribution<float>()(random);
    if (type_ == KvType::kF32) return std::bit_cast<uint32_t>(value);
    return type_ == KvType::kBF16 ? to_bf16(value).bits : to_f16(value).bits;
  }

  KvType type_;
  uint32_t dim_;
  std::vector<uint8_t> bytes_;
  std::array<double, 256> values_ = e4m3_values();
};

}  // namespace reprise::kernels::cuda

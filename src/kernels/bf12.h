// bf16 in 12 bits: a sign, 7 bits of fraction, and 4 of an exponent that counts from the largest
// value of its token and head down. What is 2^15 times smaller, zero too, takes the smallest
// magnitude that there is; a token of nothing but zeros keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/kv_page.h"

namespace reprise::kernels {

/// The parts of a bf12 tile; Byte: std::byte, const or not. Elements are in the order of bf16;
/// element i times its token's scale is what was stored.
///   low    [16 head_dim]    the lower 8 bits of an element
///   high   [16 head_dim/4]  the rest of four: 3 bits of exponent of element j from bit 4 j on, its
///                           sign in bit 4 j + 7 (mod 16), so that rotated by 4 j to the right both
///                           are where the upper half of a bf16 has them
///   scales [16]             powers of two, of the tokens
template <typename Byte>
struct Bf12Parts {
  template <typename T>
  using Part = std::conditional_t<std::is_const_v<Byte>, const T, T>;
  Part<uint8_t>* low;
  Part<uint16_t>* high;
  Part<float>* scales;
};
using Bf12Tile = Bf12Parts<std::byte>;
using ConstBf12Tile = Bf12Parts<const std::byte>;

template <typename Byte>
[[gnu::always_inline]] inline Bf12Parts<Byte> bf12_tile(Byte* tile, size_t head_dim) {
  using Parts = Bf12Parts<Byte>;
  return {reinterpret_cast<typename Parts::template Part<uint8_t>*>(tile),
          reinterpret_cast<typename Parts::template Part<uint16_t>*>(tile + kPageTokens * head_dim),
          tile_scales(KvType::kBF12, head_dim, tile, 0)};
}

/// The bits of every element: bf16 in [2^-15, 2).
inline constexpr uint16_t kBf12Bits = 0x87ff, kBf12Exponent = 0x3800;
/// Exponents, as bf16 has them, from the largest value to the smallest that is told apart.
inline constexpr uint16_t kBf12Range = 15;

/// What is taken from the magnitudes of a token whose largest, a bf16, is given; saturated at none.
/// 0: all are below 2^-111, and stored as zeros.
[[gnu::always_inline]] constexpr uint16_t bf12_base(uint16_t largest) {
  const uint16_t exponent = largest >> 7 & 0xff;
  return exponent > kBf12Range ? static_cast<uint16_t>((exponent - kBf12Range) << 7) : uint16_t{0};
}

/// The bits of the float that scales such a token.
[[gnu::always_inline]] constexpr uint32_t bf12_scale_bits(uint16_t base) {
  return base == 0 ? 0u : static_cast<uint32_t>(base + (kBf12Range << 7)) << 16;
}

/// Element i, without its scale, as the bits of a bf16.
[[gnu::always_inline]] inline uint16_t bf12_element(const ConstBf12Tile& tile, size_t i) {
  const uint32_t four = tile.high[i / 4], twice = four << 16 | four;
  return static_cast<uint16_t>((twice >> 4 * (i % 4) << 8 | tile.low[i]) & kBf12Bits) |
         kBf12Exponent;
}

/// The upper half of element i, as bf16 has it, in the word of four: what goes past its end begins
/// it.
[[gnu::always_inline]] constexpr uint16_t bf12_place(uint32_t upper, size_t i) {
  const uint32_t bits = upper << 4 * (i % 4);
  return static_cast<uint16_t>(bits | bits >> 16);
}

/// Puts a bf16, base taken from its magnitude, in the place of element i.
[[gnu::always_inline]] inline void put_bf12(const Bf12Tile& tile, size_t i, uint16_t value,
                                            uint16_t base) {
  const uint32_t magnitude = value & 0x7fffu, rest = magnitude > base ? magnitude - base : 0;
  tile.low[i] = static_cast<uint8_t>(rest);
  const uint32_t kept = tile.high[i / 4] & ~uint32_t{bf12_place(kBf12Bits >> 8, i)};
  const uint16_t placed = bf12_place(((value & 0x8000u) | rest) >> 8, i);
  tile.high[i / 4] = static_cast<uint16_t>(kept | placed);
}

}  // namespace reprise::kernels

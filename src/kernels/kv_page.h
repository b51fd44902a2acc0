// How 16 tokens of one layer lie in memory. Only the kernels know the layout inside a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/float16.h"

namespace reprise::kernels {

inline constexpr size_t kPageTokens = 16;

enum class KvType : uint8_t { kBF16, kF16, kF32, kQ8_0, kBF12 };
inline constexpr KvType kKvTypes[] = {KvType::kBF16, KvType::kBF12, KvType::kF16, KvType::kF32,
                                      KvType::kQ8_0};

/// Dims of q8_0 that share a scale.
inline constexpr size_t kQ8Block = 32;

/// Of a K or V tile, see KvLayout.
[[gnu::always_inline]] constexpr size_t tile_bytes(KvType type, size_t head_dim) {
  switch (type) {
    case KvType::kBF16:
    case KvType::kF16:
      return kPageTokens * head_dim * sizeof(uint16_t);
    case KvType::kF32:
      return kPageTokens * head_dim * sizeof(float);
    case KvType::kQ8_0:
      return kPageTokens * (head_dim + head_dim / kQ8Block * sizeof(float));
    case KvType::kBF12:
      return kPageTokens * (head_dim + head_dim / 2 + sizeof(float));
  }
  return 0;
}

/// Whether elements are multiplied by scales, which follow them in their tile.
[[gnu::always_inline]] constexpr bool has_scales(KvType type) {
  return type == KvType::kQ8_0 || type == KvType::kBF12;
}

/// Where in such a tile the 16 scales, one for each token, of a dim are.
[[gnu::always_inline]] constexpr size_t scales_offset(KvType type, size_t head_dim, size_t dim) {
  if (type == KvType::kBF12) return kPageTokens * (head_dim + head_dim / 2);
  return kPageTokens * (head_dim + dim / kQ8Block * sizeof(float));
}

/// Those scales, [16 tokens].
[[gnu::always_inline]] inline const float* tile_scales(KvType type, size_t head_dim,
                                                       const std::byte* tile, size_t dim) {
  return reinterpret_cast<const float*>(tile + scales_offset(type, head_dim, dim));
}
[[gnu::always_inline]] inline float* tile_scales(KvType type, size_t head_dim, std::byte* tile,
                                                 size_t dim) {
  return reinterpret_cast<float*>(tile + scales_offset(type, head_dim, dim));
}

/// Whether heads of so many dims can be stored.
[[gnu::always_inline]] constexpr bool suits(KvType type, size_t head_dim) {
  return head_dim % (has_scales(type) ? kQ8Block : 2) == 0;
}

/// Whether kernels multiply tiles as bf16 where the instruction set has such products.
[[gnu::always_inline]] constexpr bool rounds_to_bf16(KvType type) {
  return type == KvType::kBF16 || type == KvType::kQ8_0 || type == KvType::kBF12;
}

/// A page holds, per KV head, a K tile then a V tile:
///   K  [head_dim/2][16 tokens][2]   one register holds one rotary pair of 16 tokens: scores need
///   no
///                                   horizontal sum, and the tile is an AMX B operand
///   V  [8 token pairs][head_dim][2] the same for the sum over tokens
/// q8_0 tiles hold int8 in the same order, followed by float scales [head_dim/32][16 tokens];
/// those of bf12 are in bf12.h.
struct KvLayout {
  KvType type = KvType::kBF16;
  uint32_t n_kv_head = 0;
  uint32_t head_dim = 0;  // a multiple of 2; of 32 with scales

  size_t tile_bytes() const { return kernels::tile_bytes(type, head_dim); }
  size_t page_bytes() const { return 2 * n_kv_head * tile_bytes(); }
  size_t k_offset(size_t head) const { return 2 * head * tile_bytes(); }
  size_t v_offset(size_t head) const { return (2 * head + 1) * tile_bytes(); }
};

std::string_view kv_type_name(KvType type);
/// bf16, or bf12 where this processor gains by it and pages do not go to disk.
KvType fastest_kv_type(uint32_t head_dim, bool on_disk);

/// Calls f with std::integral_constant<KvType, type>.
template <class F>
void for_kv_type(KvType type, F&& f) {
  using enum KvType;
  switch (type) {
    case kBF16:
      return f(std::integral_constant<KvType, kBF16>{});
    case kF16:
      return f(std::integral_constant<KvType, kF16>{});
    case kF32:
      return f(std::integral_constant<KvType, kF32>{});
    case kQ8_0:
      return f(std::integral_constant<KvType, kQ8_0>{});
    case kBF12:
      return f(std::integral_constant<KvType, kBF12>{});
  }
}

/// Writes one token into slot (< 16) of a page. k, v: [n_kv_head, head_dim]. Of v, and with scales
/// of k, what is not finite is stored as something that is: kernels read slots of others, times
/// zero. One thread at a time writes tokens of a page, which may share words.
void store_token(const KvLayout& layout, std::byte* page, size_t slot, const float* k,
                 const float* v);
/// The same for count tokens in the slots from one on. k, v: [count, n_kv_head, head_dim].
void store_tokens(const KvLayout& layout, std::byte* page, size_t slot, size_t count,
                  const float* k, const float* v);

/// 16 tokens as they lie in a stored chunk.
struct Bf16Page {
  const Bf16 *k = nullptr, *v = nullptr;  // [16, n_kv_head, head_dim], k not rotated
  const float* angles = nullptr;          // [16][pairs][2], see rope()
  size_t pairs = 0;                       // 0: keys stay as they are
};
/// What widen(), rope() of every key and store_tokens() of 16 tokens do, in one pass and bit by
/// bit, but for which NaN a NaN of a key becomes. False, and nothing is stored, where this
/// processor has no such kernel for the layout.
[[nodiscard]] bool store_bf16_page(const KvLayout& layout, std::byte* page, const Bf16Page& from);

/// Reads one token of one head from its K or V tile. k, v: [head_dim].
void load_k(const KvLayout& layout, const std::byte* k_tile, size_t slot, float* k);
void load_v(const KvLayout& layout, const std::byte* v_tile, size_t slot, float* v);
/// Reads one token back. k, v: [n_kv_head, head_dim].
void load_token(const KvLayout& layout, const std::byte* page, size_t slot, float* k, float* v);

/// Copies one token of one KV head between pages (or within one), bit by bit. One thread at a time
/// writes to a head's tiles.
void copy_token(const KvLayout& layout, size_t head, const std::byte* from, size_t from_slot,
                std::byte* to, size_t to_slot);

}  // namespace reprise::kernels

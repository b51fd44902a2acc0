#include "kernels/kv_page.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/float16.h"
#include "kernels/bf12.h"
#include "kernels/cpu.h"
#include "kernels/key_tile.h"
#include "kernels/kv_page_isa.h"

namespace reprise::kernels {
namespace {

constexpr float kQ8Max = 127.0f;
constexpr float kMostF16 = 65504.0f, kMostBf16 = 0x1.fep127f;

// Element of dim d of token slot in a K tile [head_dim/2][16][2].
size_t k_index(size_t slot, size_t d) { return d / 2 * 2 * kPageTokens + 2 * slot + d % 2; }

// Element of dim d of token slot in a V tile [8][head_dim][2].
size_t v_index(size_t slot, size_t d, size_t head_dim) {
  return slot / 2 * 2 * head_dim + 2 * d + slot % 2;
}

template <typename T>
T narrow(float value) {
  if constexpr (std::is_same_v<T, Bf16>) return to_bf16(value);
  // What follows a page in its frame reads slots that are not its own, times zero.
  if constexpr (std::is_same_v<T, F16>) return to_f16(std::clamp(value, -kMostF16, kMostF16));
  if constexpr (std::is_same_v<T, float>) return value;
}

// Finite for the same reason: times zero, anything else would make NaN of what others read. In
// integers, which vectorise.
float as_finite(float value) {
  constexpr int32_t kInfinity = 0x7f800000, kMost = std::bit_cast<int32_t>(kMostBf16);
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
  const uint32_t kept = (bits & 0x80000000u) | static_cast<uint32_t>(std::min(magnitude, kMost));
  return std::bit_cast<float>(magnitude > kInfinity ? 0u : kept);
}

float widen(Bf16 value) { return to_float(value); }
float widen(F16 value) { return to_float(value); }
float widen(float value) { return value; }

// Narrows a block at a time, so that the conversion vectorises, then spreads it over the tile.
template <typename T>
void store_head(T* k_tile, T* v_tile, size_t slot, size_t head_dim, const float* k,
                const float* v) {
  constexpr size_t kBlock = 32;
  std::array<T, kBlock> narrow_k, narrow_v;
  for (size_t first = 0; first < head_dim; first += kBlock) {
    const size_t count = std::min(kBlock, head_dim - first);
    for (size_t i = 0; i < count; ++i) narrow_k[i] = narrow<T>(k[first + i]);
    for (size_t i = 0; i < count; ++i) narrow_v[i] = narrow<T>(as_finite(v[first + i]));
    for (size_t i = 0; i < count; i += 2) {
      std::memcpy(&k_tile[k_index(slot, first + i)], &narrow_k[i], 2 * sizeof(T));
    }
    for (size_t i = 0; i < count; ++i) {
      v_tile[v_index(slot, first + i, head_dim)] = narrow_v[i];
    }
  }
}

// Reads one token of a tile; index gives the element of a dim.
template <typename Index>
void load_row(const KvLayout& layout, const std::byte* tile, size_t slot, Index index, float* out) {
  const auto copy = [&]<typename T>(const T* elements) {
    for (size_t d = 0; d < layout.head_dim; ++d) out[d] = widen(elements[index(d)]);
  };
  switch (layout.type) {
    case KvType::kBF16:
      return copy(reinterpret_cast<const Bf16*>(tile));
    case KvType::kF16:
      return copy(reinterpret_cast<const F16*>(tile));
    case KvType::kF32:
      return copy(reinterpret_cast<const float*>(tile));
    case KvType::kQ8_0: {
      const auto* quants = reinterpret_cast<const int8_t*>(tile);
      const float* scales = tile_scales(layout.type, layout.head_dim, tile, 0);
      for (size_t d = 0; d < layout.head_dim; ++d) {
        out[d] = static_cast<float>(quants[index(d)]) * scales[d / kQ8Block * kPageTokens + slot];
      }
      return;
    }
    case KvType::kBF12: {
      const ConstBf12Tile parts = bf12_tile(tile, layout.head_dim);
      for (size_t d = 0; d < layout.head_dim; ++d) {
        out[d] = to_float(Bf16{bf12_element(parts, index(d))}) * parts.scales[slot];
      }
    }
  }
}

// Symmetric: 127 steps to the largest magnitude of the block. Returns the scale.
float quantise_block(const float* values, std::array<int8_t, kQ8Block>& quants) {
  float largest = 0.0f;
  for (size_t i = 0; i < kQ8Block; ++i) largest = std::max(largest, std::fabs(values[i]));
  largest = std::min(largest, kMostBf16);
  const float inverse = largest > 0.0f ? kQ8Max / largest : 0.0f;
  for (size_t i = 0; i < kQ8Block; ++i) {
    quants[i] = static_cast<int8_t>(std::lrint(values[i] * inverse));
  }
  return largest / kQ8Max;
}

// Writes one token of a tile; index gives the element of a dim.
template <typename Index>
void store_row_q8(std::byte* tile, size_t slot, size_t head_dim, Index index, const float* row) {
  auto* elements = reinterpret_cast<int8_t*>(tile);
  std::array<int8_t, kQ8Block> quants;
  for (size_t first = 0; first < head_dim; first += kQ8Block) {
    tile_scales(KvType::kQ8_0, head_dim, tile, first)[slot] = quantise_block(row + first, quants);
    for (size_t i = 0; i < kQ8Block; ++i) elements[index(first + i)] = quants[i];
  }
}

// Likewise. What is not finite is stored as something that is.
template <typename Index>
void store_row_bf12(std::byte* tile, size_t slot, size_t head_dim, Index index, const float* row) {
#if defined(__x86_64__)
  if (cpu_isa() >= Isa::kAvx512) {
    const size_t first = index(0);
    return store_bf12_row_avx512({tile, head_dim, slot, first, index(1) - first, index(2) - first},
                                 row);
  }
#endif
  const Bf12Tile parts = bf12_tile(tile, head_dim);
  const auto bits = [&](size_t d) { return to_bf16(as_finite(row[d])).bits; };
  uint16_t largest = 0;
  for (size_t d = 0; d < head_dim; ++d) {
    largest = std::max(largest, static_cast<uint16_t>(bits(d) & 0x7fff));
  }
  const uint16_t base = bf12_base(largest);
  parts.scales[slot] = std::bit_cast<float>(bf12_scale_bits(base));
  for (size_t d = 0; d < head_dim; ++d) put_bf12(parts, index(d), bits(d), base);
}

// One token of a tile of a type with scales.
template <typename Index>
void store_scaled_row(KvType type, std::byte* tile, size_t slot, size_t head_dim, Index index,
                      const float* row) {
  if (type == KvType::kBF12) return store_row_bf12(tile, slot, head_dim, index, row);
  store_row_q8(tile, slot, head_dim, index, row);
}

template <typename T>
void copy_head(const KvLayout& layout, size_t head, const std::byte* from, size_t from_slot,
               std::byte* to, size_t to_slot) {
  const size_t dim = layout.head_dim;
  const auto* from_k = reinterpret_cast<const T*>(from + layout.k_offset(head));
  const auto* from_v = reinterpret_cast<const T*>(from + layout.v_offset(head));
  auto* to_k = reinterpret_cast<T*>(to + layout.k_offset(head));
  auto* to_v = reinterpret_cast<T*>(to + layout.v_offset(head));
  for (size_t d = 0; d < dim; d += 2) {
    std::memcpy(&to_k[k_index(to_slot, d)], &from_k[k_index(from_slot, d)], 2 * sizeof(T));
  }
  for (size_t d = 0; d < dim; ++d) {
    to_v[v_index(to_slot, d, dim)] = from_v[v_index(from_slot, d, dim)];
  }
}

// Of a K tile or a V tile: from_index and to_index give the element of a dim.
template <typename FromIndex, typename ToIndex>
void copy_row_bf12(size_t head_dim, const std::byte* from, FromIndex from_index, std::byte* to,
                   ToIndex to_index) {
  const ConstBf12Tile source = bf12_tile(from, head_dim);
  const Bf12Tile target = bf12_tile(to, head_dim);
  for (size_t d = 0; d < head_dim; ++d) {
    // Elements have an exponent that their bits in the tile leave out.
    put_bf12(target, to_index(d), bf12_element(source, from_index(d)), kBf12Exponent);
  }
}

void copy_head_bf12(const KvLayout& layout, size_t head, const std::byte* from, size_t from_slot,
                    std::byte* to, size_t to_slot) {
  const size_t dim = layout.head_dim, k = layout.k_offset(head), v = layout.v_offset(head);
  copy_row_bf12(
      dim, from + k, [&](size_t d) { return k_index(from_slot, d); }, to + k,
      [&](size_t d) { return k_index(to_slot, d); });
  copy_row_bf12(
      dim, from + v, [&](size_t d) { return v_index(from_slot, d, dim); }, to + v,
      [&](size_t d) { return v_index(to_slot, d, dim); });
}

#if defined(__x86_64__)
// Whether kernels of whole registers store pages of a type.
bool stores_lines(const KvLayout& layout, KvType type) {
  return layout.type == type && layout.head_dim % 32 == 0 && cpu_isa() >= Isa::kAvx512;
}
#endif

// Of both tiles of a head.
void copy_scales(const KvLayout& layout, size_t head, const std::byte* from, size_t from_slot,
                 std::byte* to, size_t to_slot) {
  constexpr size_t kBytes = kPageTokens * sizeof(float);  // of the scales of 16 tokens
  const size_t first = scales_offset(layout.type, layout.head_dim, 0);
  for (const size_t tile : {layout.k_offset(head), layout.v_offset(head)}) {
    for (size_t at = tile + first; at < tile + layout.tile_bytes(); at += kBytes) {
      std::memcpy(to + at + to_slot * sizeof(float), from + at + from_slot * sizeof(float),
                  sizeof(float));
    }
  }
}

}  // namespace

std::string_view kv_type_name(KvType type) {
  switch (type) {
    case KvType::kBF16:
      return "bf16";
    case KvType::kF16:
      return "f16";
    case KvType::kF32:
      return "f32";
    case KvType::kQ8_0:
      return "q8_0";
    case KvType::kBF12:
      return "bf12";
  }
  return "";
}

KvType fastest_kv_type(uint32_t head_dim, bool on_disk) {
  // With AVX2 it takes longer to unpack bf12 than to read what it saves; with AMX prompts do.
  // Pages of bf16 are mostly whole blocks of a disk, which are read past the system's cache.
  const bool packs = cpu_isa() == Isa::kAvx512 && suits(KvType::kBF12, head_dim) && !on_disk;
  return packs ? KvType::kBF12 : KvType::kBF16;
}

void store_token(const KvLayout& layout, std::byte* page, size_t slot, const float* k,
                 const float* v) {
#if defined(__x86_64__)
  if (stores_lines(layout, KvType::kBF16)) return store_token_avx512(layout, page, slot, k, v);
#endif
  const size_t dim = layout.head_dim;
  for (size_t head = 0; head < layout.n_kv_head; ++head, k += dim, v += dim) {
    std::byte* k_tile = page + layout.k_offset(head);
    std::byte* v_tile = page + layout.v_offset(head);
    switch (layout.type) {
      case KvType::kBF16:
        store_head(reinterpret_cast<Bf16*>(k_tile), reinterpret_cast<Bf16*>(v_tile), slot, dim, k,
                   v);
        break;
      case KvType::kF16:
        store_head(reinterpret_cast<F16*>(k_tile), reinterpret_cast<F16*>(v_tile), slot, dim, k, v);
        break;
      case KvType::kF32:
        store_head(reinterpret_cast<float*>(k_tile), reinterpret_cast<float*>(v_tile), slot, dim, k,
                   v);
        break;
      case KvType::kQ8_0:
      case KvType::kBF12:
        store_k(layout, k_tile, slot, k);
        store_scaled_row(
            layout.type, v_tile, slot, dim, [&](size_t d) { return v_index(slot, d, dim); }, v);
        break;
    }
  }
}

void store_tokens(const KvLayout& layout, std::byte* page, size_t slot, size_t count,
                  const float* k, const float* v) {
#if defined(__x86_64__)
  const bool lines = stores_lines(layout, KvType::kBF16) || stores_lines(layout, KvType::kBF12);
  if (count == kPageTokens && lines) return store_page_avx512(layout, page, k, v);
#endif
  const size_t width = size_t{layout.n_kv_head} * layout.head_dim;
  for (size_t i = 0; i < count; ++i) {
    store_token(layout, page, slot + i, k + i * width, v + i * width);
  }
}

bool store_bf16_page([[maybe_unused]] const KvLayout& layout, [[maybe_unused]] std::byte* page,
                     [[maybe_unused]] const Bf16Page& from) {
#if defined(__x86_64__)
  if (stores_lines(layout, KvType::kBF16)) {
    store_bf16_page_avx512(layout, page, from);
    return true;
  }
#endif
  return false;
}

void store_k(const KvLayout& layout, std::byte* k_tile, size_t slot, const float* k) {
  const auto copy = [&]<typename T>(T* elements) {
    for (size_t d = 0; d < layout.head_dim; ++d) elements[k_index(slot, d)] = narrow<T>(k[d]);
  };
  switch (layout.type) {
    case KvType::kBF16:
      return copy(reinterpret_cast<Bf16*>(k_tile));
    case KvType::kF16:
      return copy(reinterpret_cast<F16*>(k_tile));
    case KvType::kF32:
      return copy(reinterpret_cast<float*>(k_tile));
    case KvType::kQ8_0:
    case KvType::kBF12:
      return store_scaled_row(
          layout.type, k_tile, slot, layout.head_dim, [&](size_t d) { return k_index(slot, d); },
          k);
  }
}

void load_k(const KvLayout& layout, const std::byte* k_tile, size_t slot, float* k) {
  load_row(
      layout, k_tile, slot, [&](size_t d) { return k_index(slot, d); }, k);
}

void load_v(const KvLayout& layout, const std::byte* v_tile, size_t slot, float* v) {
  load_row(
      layout, v_tile, slot, [&](size_t d) { return v_index(slot, d, layout.head_dim); }, v);
}

void load_token(const KvLayout& layout, const std::byte* page, size_t slot, float* k, float* v) {
  for (size_t head = 0; head < layout.n_kv_head; ++head) {
    load_k(layout, page + layout.k_offset(head), slot, k + head * layout.head_dim);
    load_v(layout, page + layout.v_offset(head), slot, v + head * layout.head_dim);
  }
}

void copy_token(const KvLayout& layout, size_t head, const std::byte* from, size_t from_slot,
                std::byte* to, size_t to_slot) {
#if defined(__x86_64__)
  if (stores_lines(layout, KvType::kBF16)) {
    return copy_token_avx512(layout, head, from, from_slot, to, to_slot);
  }
#endif
  switch (layout.type) {
    case KvType::kBF16:
    case KvType::kF16:
      return copy_head<uint16_t>(layout, head, from, from_slot, to, to_slot);
    case KvType::kF32:
      return copy_head<uint32_t>(layout, head, from, from_slot, to, to_slot);
    case KvType::kQ8_0:
      copy_head<uint8_t>(layout, head, from, from_slot, to, to_slot);
      return copy_scales(layout, head, from, from_slot, to, to_slot);
    case KvType::kBF12:
      copy_head_bf12(layout, head, from, from_slot, to, to_slot);
      return copy_scales(layout, head, from, from_slot, to, to_slot);
  }
}

}  // namespace reprise::kernels

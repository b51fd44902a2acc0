// How a page tile of one KV head lies in device memory.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define REPRISE_HOST_DEVICE __host__ __device__
#else
#define REPRISE_HOST_DEVICE
#endif

namespace reprise::kernels::cuda {

/// kFP8: e4m3 codes (1 sign, 4 exponent, 3 mantissa bits; largest 448) with an f32 scale per token.
/// kF32: read by float_attention.h alone.
enum class KvType : uint8_t { kBF16, kF16, kFP8, kF32 };

inline constexpr uint32_t kPageTokens = 16;
inline constexpr float kLargestE4M3 = 448.0f;

/// Bytes from the start of a K or V tile, [16 tokens][head_dim] of 16-bit values, to 16-byte chunk
/// c of token t. Where head_dim allows, a tile is atoms of 8 tokens x 128 bytes, [2][head_dim /
/// 64][8][64], in which chunk c of token t lies at c ^ t: what Hopper's tensor cores read; a stack
/// of tiles is one longer tile. Eight tokens of a chunk never share a bank of shared memory (two do
/// in the last four chunks of head_dim 96).
REPRISE_HOST_DEVICE constexpr uint32_t tile_offset(uint32_t head_dim, uint32_t t, uint32_t c) {
  if (head_dim % 64 != 0) {
    return t * head_dim * 2 + (c < head_dim / 64 * 8 ? c ^ (t & 7) : c ^ (t & 3)) * 16;
  }
  const uint32_t atom = t / 8 * (head_dim / 64) + c / 8;
  return atom * 1024 + t % 8 * 128 + ((c ^ t) & 7) * 16;
}

/// The same for a tile of e4m3 codes, whose chunks are 16 dimensions: rows of head_dim bytes, in
/// which chunks change places such that eight tokens of a chunk never share a bank. head_dim: a
/// multiple of 32.
REPRISE_HOST_DEVICE constexpr uint32_t fp8_tile_offset(uint32_t head_dim, uint32_t t, uint32_t c) {
  const uint32_t chunks = head_dim / 16, power = chunks & (~chunks + 1);  // of two, in chunks
  const uint32_t places = power < 8 ? power : 8;
  return t * head_dim + (c ^ (t % 8 * places / 8)) * 16;
}

/// Bytes from the start of a tile of e4m3 codes to the f32 scale of token t: value = code * scale.
REPRISE_HOST_DEVICE constexpr uint32_t fp8_scale_offset(uint32_t head_dim, uint32_t t) {
  return kPageTokens * head_dim + t * 4;
}

REPRISE_HOST_DEVICE constexpr uint32_t element_bytes(KvType type) {
  return type == KvType::kFP8 ? 1 : type == KvType::kF32 ? 4 : 2;
}

/// Bytes of a K or V tile.
REPRISE_HOST_DEVICE constexpr uint32_t tile_bytes(KvType type, uint32_t head_dim) {
  return type == KvType::kFP8 ? fp8_scale_offset(head_dim, kPageTokens)
                              : kPageTokens * head_dim * element_bytes(type);
}

/// Bytes from the start of a tile to dimension dim of a token. A tile of floats is row-major.
REPRISE_HOST_DEVICE constexpr uint32_t element_offset(KvType type, uint32_t head_dim,
                                                      uint32_t token, uint32_t dim) {
  if (type == KvType::kF32) return (token * head_dim + dim) * element_bytes(type);
  return type == KvType::kFP8 ? fp8_tile_offset(head_dim, token, dim / 16) + dim % 16
                              : tile_offset(head_dim, token, dim / 8) + dim % 8 * 2;
}

}  // namespace reprise::kernels::cuda

// How a page tile of one KV head lies in device memory.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define REPRISE_HOST_DEVICE __host__ __device__
#else
#define REPRISE_HOST_DEVICE
#endif

namespace reprise::kernels::cuda {

inline constexpr uint32_t kPageTokens = 16;

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

/// Where dimension dim of a token lies in its tile, in elements.
REPRISE_HOST_DEVICE constexpr uint32_t tile_index(uint32_t head_dim, uint32_t token, uint32_t dim) {
  return tile_offset(head_dim, token, dim / 8) / 2 + dim % 8;
}

}  // namespace reprise::kernels::cuda

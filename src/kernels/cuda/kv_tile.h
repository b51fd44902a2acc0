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

/// A K or V tile is [16 tokens][head_dim] of 16-bit values, in chunks of 8. Chunk c of token t lies
/// at place swizzled_chunk(chunks, c, t) of the token's row, so that eight rows are read from
/// shared memory without bank conflicts (two-way for the last four chunks of head_dim 96).
REPRISE_HOST_DEVICE constexpr uint32_t swizzled_chunk(uint32_t chunks, uint32_t c, uint32_t t) {
  return c < chunks / 8 * 8 ? c ^ (t & 7) : c ^ (t & 3);
}

/// Where dimension dim of a token lies in its tile, in elements.
REPRISE_HOST_DEVICE constexpr uint32_t tile_index(uint32_t head_dim, uint32_t token, uint32_t dim) {
  return token * head_dim + swizzled_chunk(head_dim / 8, dim / 8, token) * 8 + dim % 8;
}

}  // namespace reprise::kernels::cuda

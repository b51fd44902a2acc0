// The two matrix products of attention in AMX tiles, for 32 rows. Everything is static: see
// simd_avx512.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/simd_avx512.h"

namespace reprise::kernels {

static constexpr size_t kTileRows = 16;    // rows of a tile
static constexpr size_t kTileBf16 = 32;    // bf16 of a tile row: how much one product sums over
static constexpr size_t kTileFloats = 16;  // floats of a tile row
static constexpr size_t kTileRowBytes = 64;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

static inline void load_tile_config() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kTileRowBytes;
    config.rows[tile] = kTileRows;
  }
  asm volatile("" ::"r"(&config) : "memory");  // the intrinsic names only the first 8 bytes
  _tile_loadconfig(&config);
}

// Tile intrinsics of GCC do not say that they read memory.
static inline void finish_stores() { asm volatile("" ::: "memory"); }

// Tiles 0..3 += (upper and lower row tile of a) x (left and right column tile of b).
static inline void multiply_tiles(const void* upper, const void* lower, size_t row_bytes,
                                  const void* left, const void* right, size_t column_bytes) {
  finish_stores();
  _tile_loadd(4, upper, row_bytes);
  _tile_loadd(6, left, column_bytes);
  _tile_loadd(7, right, column_bytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, lower, row_bytes);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

static inline void store_tiles(float* upper, size_t stride) {
  const size_t bytes = stride * sizeof(float);
  float* lower = upper + kTileRows * stride;
  _tile_stored(0, upper, bytes);
  _tile_stored(1, upper + kTileFloats, bytes);
  _tile_stored(2, lower, bytes);
  _tile_stored(3, lower + kTileFloats, bytes);
}

// logits[32][stride] = q[32][dims] K^T over an even number of pages, 16 columns a page. k: K tiles
// of the pages, [dims / 2][16 tokens] pairs of bf16.
static inline void multiply_keys(const uint16_t* q, const uint32_t* const* k, size_t pages,
                                 size_t dims, float* logits, size_t stride) {
  for (size_t page = 0; page < pages; page += 2) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t dim = 0; dim < dims; dim += kTileBf16) {
      multiply_tiles(q + dim, q + kTileRows * dims + dim, dims * sizeof(uint16_t),
                     k[page] + dim / 2 * 16, k[page + 1] + dim / 2 * 16, kTileRowBytes);
    }
    store_tiles(logits + page * 16, stride);
  }
}

// sums[32][dims] += weights[32][stride] V over an even number of pages. values: [pages][8 token
// pairs][dims] pairs of bf16.
static inline void multiply_values(const uint16_t* weights, size_t stride, const uint32_t* values,
                                   size_t pages, size_t dims, float* sums) {
  const size_t sum_bytes = dims * sizeof(float);
  for (size_t dim = 0; dim < dims; dim += kTileBf16) {
    float *upper = sums + dim, *lower = upper + kTileRows * dims;
    finish_stores();
    _tile_loadd(0, upper, sum_bytes);
    _tile_loadd(1, upper + kTileFloats, sum_bytes);
    _tile_loadd(2, lower, sum_bytes);
    _tile_loadd(3, lower + kTileFloats, sum_bytes);
    for (size_t page = 0; page < pages; page += 2) {
      const uint16_t* row = weights + page * 16;
      const uint32_t* value = values + page * 8 * dims + dim;
      multiply_tiles(row, row + kTileRows * stride, stride * sizeof(uint16_t), value,
                     value + kTileFloats, dims * sizeof(uint32_t));
    }
    store_tiles(upper, dims);
  }
}

}  // namespace reprise::kernels

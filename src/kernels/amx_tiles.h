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

// Sums of 16 rows by 32 columns lie in two tiles: those of the upper rows of a group of 32 in tiles
// 0 and 1, those of the lower rows in 2 and 3. A store waits for the products of its tiles and
// holds up everything behind it, so one half is stored after the products of the other have
// started.
enum class Half { kUpper, kLower };

template <Half kHalf>
static inline void zero_half() {
  if constexpr (kHalf == Half::kUpper) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <Half kHalf>
static inline void load_half(const float* at, size_t stride) {
  const size_t bytes = stride * sizeof(float);
  finish_stores();
  if constexpr (kHalf == Half::kUpper) {
    _tile_loadd(0, at, bytes);
    _tile_loadd(1, at + kTileFloats, bytes);
  } else {
    _tile_loadd(2, at, bytes);
    _tile_loadd(3, at + kTileFloats, bytes);
  }
}

template <Half kHalf>
static inline void store_half(float* at, size_t stride) {
  const size_t bytes = stride * sizeof(float);
  if constexpr (kHalf == Half::kUpper) {
    _tile_stored(0, at, bytes);
    _tile_stored(1, at + kTileFloats, bytes);
  } else {
    _tile_stored(2, at, bytes);
    _tile_stored(3, at + kTileFloats, bytes);
  }
  finish_stores();
}

// The half += a x (left and right column tile of b).
template <Half kHalf>
static inline void multiply_half(const void* a, size_t row_bytes, const void* left,
                                 const void* right, size_t column_bytes) {
  finish_stores();
  _tile_loadd(4, a, row_bytes);
  _tile_loadd(6, left, column_bytes);
  _tile_loadd(7, right, column_bytes);
  if constexpr (kHalf == Half::kUpper) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  } else {
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 4, 7);
  }
}

// logits[32][stride] = q[32][dims] K^T over an even number of pages, 16 columns a page. k: K tiles
// of the pages, [dims / 2][16 tokens] pairs of bf16.
static inline void multiply_keys(const uint16_t* q, const uint32_t* const* k, size_t pages,
                                 size_t dims, float* logits, size_t stride) {
  const size_t q_bytes = dims * sizeof(uint16_t);
  const uint16_t* lower_q = q + kTileRows * dims;
  float* lower = logits + kTileRows * stride;
  for (size_t page = 0; page < pages; page += 2) {
    const uint32_t *left = k[page], *right = k[page + 1];
    zero_half<Half::kUpper>();
    for (size_t dim = 0; dim < dims; dim += kTileBf16) {
      multiply_half<Half::kUpper>(q + dim, q_bytes, left + dim * 8, right + dim * 8, kTileRowBytes);
    }
    if (page > 0) store_half<Half::kLower>(lower + (page - 2) * 16, stride);
    zero_half<Half::kLower>();
    for (size_t dim = 0; dim < dims; dim += kTileBf16) {
      multiply_half<Half::kLower>(lower_q + dim, q_bytes, left + dim * 8, right + dim * 8,
                                  kTileRowBytes);
    }
    store_half<Half::kUpper>(logits + page * 16, stride);
  }
  store_half<Half::kLower>(lower + (pages - 2) * 16, stride);
}

// sums[32][dims] += weights[32][stride] V over an even number of pages. values: [pages][8 token
// pairs][dims] pairs of bf16.
static inline void multiply_values(const uint16_t* weights, size_t stride, const uint32_t* values,
                                   size_t pages, size_t dims, float* sums) {
  const size_t weight_bytes = stride * sizeof(uint16_t), value_bytes = dims * sizeof(uint32_t);
  const uint16_t* lower_weights = weights + kTileRows * stride;
  float* lower = sums + kTileRows * dims;
  for (size_t dim = 0; dim < dims; dim += 32) {
    const uint32_t* value = values + dim;
    load_half<Half::kUpper>(sums + dim, dims);
    for (size_t page = 0; page < pages; page += 2) {
      multiply_half<Half::kUpper>(weights + page * 16, weight_bytes, value + page * 8 * dims,
                                  value + page * 8 * dims + kTileFloats, value_bytes);
    }
    if (dim > 0) store_half<Half::kLower>(lower + dim - 32, dims);
    load_half<Half::kLower>(lower + dim, dims);
    for (size_t page = 0; page < pages; page += 2) {
      multiply_half<Half::kLower>(lower_weights + page * 16, weight_bytes, value + page * 8 * dims,
                                  value + page * 8 * dims + kTileFloats, value_bytes);
    }
    store_half<Half::kUpper>(sums + dim, dims);
  }
  store_half<Half::kLower>(lower + dims - 32, dims);
}

}  // namespace reprise::kernels

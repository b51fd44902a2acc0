// The two matrix products of attention in AMX tiles, cut into steps of four tile products, so that
// the caller can do vector work between them: both units then run at once. A product works on 32
// rows; it keeps its sums in tiles 0 to 3, so only one is under way at a time. Everything is
// static: see simd_avx512.h.
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

// logits[32 rows][pages] = q K^T; pages in pairs.
struct ScoreProduct {
  const uint16_t* q = nullptr;         // [32][dims] bf16
  const uint32_t* const* k = nullptr;  // K tiles of the pages [dims / 2][16]
  float* logits = nullptr;             // [32][stride], 16 columns a page
  size_t dims = 0, pages = 0, stride = 0;
  size_t page = 0, dim = 0;

  bool done() const { return page >= pages; }
  size_t steps() const { return pages / 2 * (dims / kTileBf16); }
  void step() {
    if (dim == 0) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    const uint16_t* upper = q + dim;
    multiply_tiles(upper, upper + kTileRows * dims, dims * sizeof(uint16_t), k[page] + dim / 2 * 16,
                   k[page + 1] + dim / 2 * 16, kTileRowBytes);
    dim += kTileBf16;
    if (dim < dims) return;
    store_tiles(logits + page * 16, stride);
    dim = 0;
    page += 2;
  }
};

// sums[32 rows][dims] += weights V; pages in pairs.
struct SumProduct {
  const uint16_t* weights = nullptr;  // [32][stride] bf16, 16 a page
  const uint32_t* values = nullptr;   // [pages][8 token pairs][dims]
  float* sums = nullptr;              // [32][dims]
  size_t dims = 0, pages = 0, stride = 0;
  size_t page = 0, dim = 0;

  bool done() const { return dim >= dims || pages == 0; }
  size_t steps() const { return pages / 2 * (dims / kTileBf16); }
  void step() {
    if (page == 0) {
      const size_t bytes = dims * sizeof(float);
      float *upper = sums + dim, *lower = upper + kTileRows * dims;
      finish_stores();
      _tile_loadd(0, upper, bytes);
      _tile_loadd(1, upper + kTileFloats, bytes);
      _tile_loadd(2, lower, bytes);
      _tile_loadd(3, lower + kTileFloats, bytes);
    }
    const uint16_t* upper = weights + page * 16;
    const uint32_t* left = values + page * 8 * dims + dim;
    multiply_tiles(upper, upper + kTileRows * stride, stride * sizeof(uint16_t), left,
                   left + kTileFloats, dims * sizeof(uint32_t));
    page += 2;
    if (page < pages) return;
    store_tiles(sums + dim, dims);
    page = 0;
    dim += kTileBf16;
  }
};

// Both products, one after the other, their steps spread evenly over `calls` calls.
class Beside {
 public:
  Beside(const SumProduct& sum, const ScoreProduct& score, size_t calls)
      : sum_(sum), score_(score), steps_(sum.steps() + score.steps()), calls_(calls) {}
  void call() {
    for (due_ += steps_; due_ >= calls_; due_ -= calls_) step();
  }
  void finish() {
    while (!sum_.done() || !score_.done()) step();
  }

 private:
  void step() {
    if (!sum_.done()) {
      sum_.step();
    } else if (!score_.done()) {
      score_.step();
    }
  }

  SumProduct sum_;
  ScoreProduct score_;
  size_t steps_, calls_, due_ = 0;
};

}  // namespace reprise::kernels

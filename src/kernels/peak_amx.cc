#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/peak_isa.h"

namespace reprise::kernels {

void peak_amx(size_t iterations) {
  struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = 16;
  }
  asm volatile("" ::"r"(&config) : "memory");  // the intrinsic names only the first 8 bytes
  _tile_loadconfig(&config);
  // Operands that change, as those of a model do: with the same ones again and again a Granite
  // Rapids keeps a clock a quarter higher than products of data ever see.
  constexpr size_t kTile = 16 * 32, kTiles = 8;
  alignas(64) uint16_t values[2 * kTiles * kTile];
  uint32_t state = 1;
  for (uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<uint16_t>(0x3c00 + (state >> 23) + (state >> 31 << 15));
  }
  asm volatile("" ::"r"(values) : "memory");
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t i = 0; i < iterations; ++i) {
    const uint16_t *left = values, *right = values + kTiles * kTile;
    _tile_loadd(4, left + i % kTiles * kTile, 64);
    _tile_loadd(6, right + i % kTiles * kTile, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + (i + 5) % kTiles * kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + (i + 3) % kTiles * kTile, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

}  // namespace reprise::kernels

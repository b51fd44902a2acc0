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
  alignas(64) uint16_t ones[16 * 32];
  for (uint16_t& one : ones) one = 0x3f80;
  asm volatile("" ::"r"(ones) : "memory");
  _tile_loadd(4, ones, 64);
  _tile_loadd(5, ones, 64);
  _tile_loadd(6, ones, 64);
  _tile_loadd(7, ones, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

}  // namespace reprise::kernels

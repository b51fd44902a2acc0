#include <immintrin.h>

#include "kernels/matmul_isa.h"

namespace reprise::kernels {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// All eight tiles hold 16 rows of 64 bytes.
void configure_tiles() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = 16;
  }
  asm volatile("" ::"r"(&config) : "memory");  // the intrinsic names only the first 8 bytes
  _tile_loadconfig(&config);
}

// The tile intrinsics do not tell the compiler which memory they touch.
inline void memory_barrier() { asm volatile("" ::: "memory"); }

// 32 rows times 2 panels. Tiles 0-3 are the sums, 4-5 activations, 6-7 weights.
void multiply_two(const MultiplyJob& job, const uint16_t* x, float* sums) {
  memory_barrier();
  if (job.first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + 256, 64);
    _tile_loadd(2, sums + 512, 64);
    _tile_loadd(3, sums + 768, 64);
  }
  const uint16_t *w0 = job.w, *w1 = job.w + job.steps * kTileElements, *x1 = x + job.x_row_tile;
  for (size_t i = 0; i < job.steps * kTileElements; i += kTileElements) {
    _tile_loadd(6, w0 + i, 64);
    _tile_loadd(4, x + i, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1 + i, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x1 + i, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  _tile_stored(2, sums + 512, 64);
  _tile_stored(3, sums + 768, 64);
  memory_barrier();
}

// 16 rows times 2 panels.
void multiply_one(const MultiplyJob& job, const uint16_t* x, float* sums) {
  memory_barrier();
  if (job.first) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + 256, 64);
  }
  const uint16_t *w0 = job.w, *w1 = job.w + job.steps * kTileElements;
  for (size_t i = 0; i < job.steps * kTileElements; i += kTileElements) {
    _tile_loadd(4, x + i, 64);
    _tile_loadd(6, w0 + i, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1 + i, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  memory_barrier();
}

}  // namespace

void multiply_amx(const MultiplyJob& job) {
  configure_tiles();
  for (size_t row = 0; row < job.rows; row += 32) {
    const auto multiply = job.rows - row > 16 ? multiply_two : multiply_one;
    multiply(job, job.x + row / 16 * job.x_row_tile, job.sums + row / 16 * kSumElements);
  }
  _tile_release();
}

}  // namespace reprise::kernels

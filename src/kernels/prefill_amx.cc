#include "kernels/amx_tiles.h"
#include "kernels/matmul_isa.h"

namespace reprise::kernels {
namespace {

// 32 rows times 2 panels. Tiles 0-3 are the sums, 4-5 activations, 6-7 weights. Activations stream
// past the first-level cache, which the weights of a pass fill and all rows read.
void multiply_two(const MultiplyJob& job) {
  finish_stores();
  float* sums = job.sums;
  if (job.first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_stream_loadd(0, sums, kTileRowBytes);
    _tile_stream_loadd(1, sums + 256, kTileRowBytes);
    _tile_stream_loadd(2, sums + 512, kTileRowBytes);
    _tile_stream_loadd(3, sums + 768, kTileRowBytes);
  }
  const uint16_t *x0 = bf16_tile(job.x), *x1 = bf16_tile(job.x + job.x_row_tile);
  const uint16_t *w0 = bf16_tile(job.w), *w1 = w0 + job.steps * kTileElements;
  for (size_t i = 0; i < job.steps * kTileElements; i += kTileElements) {
    _tile_loadd(6, w0 + i, kTileRowBytes);
    _tile_stream_loadd(4, x0 + i, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1 + i, kTileRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, x1 + i, kTileRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kTileRowBytes);
  _tile_stored(1, sums + 256, kTileRowBytes);
  _tile_stored(2, sums + 512, kTileRowBytes);
  _tile_stored(3, sums + 768, kTileRowBytes);
  finish_stores();
}

// 16 rows times 2 panels.
void multiply_one(const MultiplyJob& job) {
  finish_stores();
  float* sums = job.sums;
  if (job.first) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_stream_loadd(0, sums, kTileRowBytes);
    _tile_stream_loadd(1, sums + 256, kTileRowBytes);
  }
  const uint16_t *x = bf16_tile(job.x), *w0 = bf16_tile(job.w),
                 *w1 = w0 + job.steps * kTileElements;
  for (size_t i = 0; i < job.steps * kTileElements; i += kTileElements) {
    _tile_stream_loadd(4, x + i, kTileRowBytes);
    _tile_loadd(6, w0 + i, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1 + i, kTileRowBytes);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, sums, kTileRowBytes);
  _tile_stored(1, sums + 256, kTileRowBytes);
  finish_stores();
}

}  // namespace

void begin_multiply_amx() { load_tile_config(); }
void end_multiply_amx() { _tile_release(); }

void multiply_amx(const MultiplyJob& job) { job.rows > 16 ? multiply_two(job) : multiply_one(job); }

}  // namespace reprise::kernels

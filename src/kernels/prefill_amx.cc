#include "kernels/amx_tiles.h"
#include "kernels/matmul_isa.h"

namespace reprise::kernels {
namespace {

// Sums of the first 16 rows are tiles 0 and 1, of the next 16 tiles 2 and 3.
template <bool kTwo>
inline void load_sums(const MultiplyJob& job) {
  finish_stores();
  if (job.first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    return;
  }
  _tile_stream_loadd(0, job.sums, kTileRowBytes);
  _tile_stream_loadd(1, job.sums + 256, kTileRowBytes);
  if constexpr (!kTwo) return;
  _tile_stream_loadd(2, job.sums + 512, kTileRowBytes);
  _tile_stream_loadd(3, job.sums + 768, kTileRowBytes);
}

template <bool kTwo>
inline void store_sums(const MultiplyJob& job) {
  _tile_stored(0, job.sums, kTileRowBytes);
  _tile_stored(1, job.sums + 256, kTileRowBytes);
  if constexpr (kTwo) {
    _tile_stored(2, job.sums + 512, kTileRowBytes);
    _tile_stored(3, job.sums + 768, kTileRowBytes);
  }
  finish_stores();
}

// 32 or 16 rows times 2 panels. Tiles 4 and 5 are activations, 6 and 7 weights. Activations stream
// past the first-level cache, which the weights of a pass fill and all rows read: with loads that
// stay there a step took 97 cycles instead of 69, of 64 that the products take.
template <bool kTwo>
void multiply_rows(const MultiplyJob& job) {
  load_sums<kTwo>(job);
  const uint16_t *x0 = bf16_tile(job.x), *x1 = bf16_tile(job.x + (kTwo ? job.x_row_tile : 0));
  const uint16_t *w0 = bf16_tile(job.w), *w1 = w0 + job.steps * kTileElements;
  for (size_t i = 0; i < job.steps * kTileElements; i += kTileElements) {
    _tile_loadd(6, w0 + i, kTileRowBytes);
    _tile_stream_loadd(4, x0 + i, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w1 + i, kTileRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwo) {
      _tile_stream_loadd(5, x1 + i, kTileRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    if (job.ahead != nullptr) job.ahead->step();
  }
  store_sums<kTwo>(job);
}

}  // namespace

void begin_multiply_amx() { load_tile_config(); }
void end_multiply_amx() { _tile_release(); }

void multiply_amx(const MultiplyJob& job) {
  job.rows > kTileRows ? multiply_rows<true>(job) : multiply_rows<false>(job);
}

}  // namespace reprise::kernels

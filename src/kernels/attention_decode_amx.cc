// Decode with AMX tiles over pages of bf16: up to 16 rows against four pages at a time. Both K and
// V tiles multiply as they are stored, V as half-height tiles of 8 token pairs. Logits are in units
// of log2.
#include "kernels/amx_tiles.h"
#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"
#include "kernels/attention_tiles.h"
#include "kernels/softmax_avx512.h"
#include "kernels/tiles_ahead.h"

namespace reprise::kernels {
namespace {

constexpr size_t kUnitPages = 4, kUnitKeys = kUnitPages * kPageTokens;

struct Buffers {
  uint16_t* q;        // [16, head_dim] bf16
  float* sums;        // [16, head_dim] weighted values, not normalised
  float* base;        // [16] what logits are relative to
  float* totals;      // [16, 16] weights summed lane by lane
  float* logits;      // [16, kUnitKeys]
  uint16_t* weights;  // [16, kUnitKeys] bf16
  uint32_t* keys;     // [kUnitPages] tiles that are rotated at read
};

// Four pages; those past the end of the list are null and repeat a tile.
struct Unit {
  const PageSpan* pages[kUnitPages];
  const uint32_t *k[kUnitPages] = {}, *v[kUnitPages] = {};
  bool adjusted = false;  // the logits are masked or biased
};

// The tiles of the pages after a unit.
using Ahead = TilesAhead<kUnitPages>;

// Few at a time and between all steps: those that wait for memory hold up the loads behind them.
inline void fetch_ahead(Ahead& ahead) {
  constexpr size_t kLines = 8;
  if (!ahead.done()) fetch_lines<kLines, 2>(ahead.take(kLines));
}

// Tiles 0 to 3: sums [rows][16]. 4: q [rows][32]. 5: K [16 pairs of dims][16 tokens].
// 6: weights [rows][16]. 7: V [8 pairs of tokens][16 dims].
void load_decode_config(size_t rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = tile == 6 ? kTileRowBytes / 2 : kTileRowBytes;
    config.rows[tile] = static_cast<uint8_t>(tile == 5 ? kTileRows : tile == 7 ? 8 : rows);
  }
  _tile_loadconfig(&config);
}

Buffers carve(const AttendArgs& args, std::byte* scratch) {
  Buffers b;
  const size_t head_dim = args.layout->head_dim;
  Arena arena(scratch);
  b.q = arena.take<uint16_t>(kTileRows * head_dim);
  b.sums = arena.take<float>(kTileRows * head_dim);
  b.base = arena.take<float>(kTileRows);
  b.totals = arena.take<float>(kTileRows * kTileFloats);
  b.logits = arena.take<float>(kTileRows * kUnitKeys);
  b.weights = arena.take<uint16_t>(kTileRows * kUnitKeys);
  b.keys = arena.take<uint32_t>(kUnitKeys * head_dim / 2);
  return b;
}

Unit make_unit(const AttendArgs& args, size_t first, const RowWindow& window, const Buffers& b) {
  Unit unit;
  const size_t tile = kPageTokens * args.layout->head_dim / 2;
  for (size_t p = 0; p < kUnitPages; ++p) {
    if (first + p >= args.pages.size()) {
      unit.pages[p] = nullptr;
      unit.k[p] = unit.k[0];
      unit.v[p] = unit.v[0];
      unit.adjusted = true;
      continue;
    }
    const PageSpan* page = args.pages.data() + first + p;
    unit.pages[p] = page;
    unit.k[p] = reinterpret_cast<const uint32_t*>(page->k);
    unit.v[p] = reinterpret_cast<const uint32_t*>(page->v);
    unit.adjusted |= needs_adjustment(window, *page);
    if (page->cos_sin == nullptr) continue;
    bf16_k_tile_avx512(args, *page, b.keys + p * tile);
    unit.k[p] = b.keys + p * tile;
  }
  return unit;
}

// logits[rows][64] = q K^T
void multiply_keys(const Unit& unit, size_t head_dim, const Buffers& b, Ahead& ahead) {
  const size_t stride = kUnitKeys * sizeof(float);
  finish_stores();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t dim = 0; dim < head_dim; dim += kTileBf16) {
    const size_t offset = dim / 2 * kPageTokens;
    _tile_loadd(4, b.q + dim, head_dim * sizeof(uint16_t));
    _tile_loadd(5, unit.k[0] + offset, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 5);
    fetch_ahead(ahead);
    _tile_loadd(5, unit.k[1] + offset, kTileRowBytes);
    _tile_dpbf16ps(1, 4, 5);
    fetch_ahead(ahead);
    _tile_loadd(5, unit.k[2] + offset, kTileRowBytes);
    _tile_dpbf16ps(2, 4, 5);
    fetch_ahead(ahead);
    _tile_loadd(5, unit.k[3] + offset, kTileRowBytes);
    _tile_dpbf16ps(3, 4, 5);
    fetch_ahead(ahead);
  }
  _tile_stored(0, b.logits, stride);
  _tile_stored(1, b.logits + kPageTokens, stride);
  _tile_stored(2, b.logits + 2 * kPageTokens, stride);
  _tile_stored(3, b.logits + 3 * kPageTokens, stride);
}

// sums[rows][N tiles of dims] += weights V; N is 2 or 4.
template <int N>
void multiply_values(const Unit& unit, size_t head_dim, size_t dim, const Buffers& b,
                     Ahead& ahead) {
  const size_t sum_bytes = head_dim * sizeof(float), value_bytes = head_dim * sizeof(uint32_t);
  float* sums = b.sums + dim;
  finish_stores();
  _tile_loadd(0, sums, sum_bytes);
  _tile_loadd(1, sums + kTileFloats, sum_bytes);
  if constexpr (N > 2) _tile_loadd(2, sums + 2 * kTileFloats, sum_bytes);
  if constexpr (N > 2) _tile_loadd(3, sums + 3 * kTileFloats, sum_bytes);
  for (size_t p = 0; p < kUnitPages; ++p) {
    const uint32_t* v = unit.v[p] + dim;
    _tile_loadd(6, b.weights + p * kPageTokens, kUnitKeys * sizeof(uint16_t));
    _tile_loadd(7, v, value_bytes);
    _tile_dpbf16ps(0, 6, 7);
    fetch_ahead(ahead);
    _tile_loadd(7, v + kTileFloats, value_bytes);
    _tile_dpbf16ps(1, 6, 7);
    fetch_ahead(ahead);
    if constexpr (N > 2) {
      _tile_loadd(7, v + 2 * kTileFloats, value_bytes);
      _tile_dpbf16ps(2, 6, 7);
      fetch_ahead(ahead);
      _tile_loadd(7, v + 3 * kTileFloats, value_bytes);
      _tile_dpbf16ps(3, 6, 7);
      fetch_ahead(ahead);
    }
  }
  _tile_stored(0, sums, sum_bytes);
  _tile_stored(1, sums + kTileFloats, sum_bytes);
  if constexpr (N > 2) _tile_stored(2, sums + 2 * kTileFloats, sum_bytes);
  if constexpr (N > 2) _tile_stored(3, sums + 3 * kTileFloats, sum_bytes);
}

// Turns the logits of a row into weights. row: of the call; r: of the tile.
void weigh(const AttendArgs& args, size_t row, size_t r, const Unit& unit, const Buffers& b) {
  __m512 logits[kUnitPages], top = _mm512_set1_ps(kNoBase);
  const bool adjust = unit.adjusted || args.soft_cap > 0.0f;
  for (size_t p = 0; p < kUnitPages; ++p) {
    logits[p] = _mm512_loadu_ps(b.logits + r * kUnitKeys + p * kPageTokens);
    if (adjust) logits[p] = adjust_logits(args, row, unit.pages[p], logits[p]);
    if (args.logits != nullptr) keep_logits(args, row, unit.pages[p], logits[p]);
    top = _mm512_max_ps(top, logits[p]);
  }
  const size_t head_dim = args.layout->head_dim;
  float* totals = b.totals + r * kTileFloats;
  move_base(top, b.base + r, totals, b.sums + r * head_dim, head_dim);
  const __m512 base = _mm512_set1_ps(b.base[r]);
  __m512 total = _mm512_loadu_ps(totals);
  for (size_t p = 0; p < kUnitPages; p += 2) {
    const __m512 low = exp2_512(_mm512_sub_ps(logits[p], base));
    const __m512 high = exp2_512(_mm512_sub_ps(logits[p + 1], base));
    total = _mm512_add_ps(total, _mm512_add_ps(low, high));
    const __m512bh packed = _mm512_cvtne2ps_pbh(high, low);
    _mm512_storeu_si512(b.weights + r * kUnitKeys + p * kPageTokens, (__m512i)packed);
  }
  _mm512_storeu_ps(totals, total);
}

void attend_rows(const AttendArgs& args, size_t row, size_t rows, const Buffers& b) {
  const size_t head_dim = args.layout->head_dim;
  for (size_t r = 0; r < rows; ++r) {
    scale_row<true>(args.q_row(row + r), head_dim, args.scale,
                    reinterpret_cast<uint32_t*>(b.q + r * head_dim));
    clear_row(b.sums + r * head_dim, head_dim, b.base + r, b.totals + r * kTileFloats);
  }
  const RowWindow window = row_window(args, row, rows);
  load_decode_config(rows);
  for (size_t page = 0; page < args.pages.size(); page += kUnitPages) {
    const Unit unit = make_unit(args, page, window, b);
    Ahead ahead(args, page + kUnitPages);
    multiply_keys(unit, head_dim, b, ahead);
    for (size_t r = 0; r < rows; ++r) {
      weigh(args, row + r, r, unit, b);
      fetch_ahead(ahead);
      fetch_ahead(ahead);
    }
    size_t dim = 0;
    for (; dim + 4 * kTileFloats <= head_dim; dim += 4 * kTileFloats) {
      multiply_values<4>(unit, head_dim, dim, b, ahead);
    }
    if (dim < head_dim) multiply_values<2>(unit, head_dim, dim, b, ahead);
    while (!ahead.done()) fetch_ahead(ahead);
  }
  _tile_release();
  for (size_t r = 0; r < rows; ++r) {
    finish_row(b.sums + r * head_dim, b.base[r], b.totals + r * kTileFloats, head_dim,
               args.out_row(row + r), args.lse + row + r);
  }
}

}  // namespace

void attend_decode_amx(const AttendArgs& args, std::byte* scratch) {
  const Buffers b = carve(args, scratch);
  for (size_t row = 0; row < args.rows; row += kTileRows) {
    const size_t left = args.rows - row;
    attend_rows(args, row, left < kTileRows ? left : kTileRows, b);
  }
}

}  // namespace reprise::kernels

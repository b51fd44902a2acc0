// Prefill with AMX tiles, 32 rows by up to 128 keys at a time. K tiles multiply as they are stored;
// V tiles of two pages are put under each other, so that a product sums 32 tokens. While the vector
// unit turns the logits of one group of rows into weights, the tile unit computes those of the
// next. Logits are in units of log2.
#include "kernels/amx_tiles.h"
#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"
#include "kernels/attention_tiles.h"
#include "kernels/simd_avx512.h"
#include "kernels/softmax_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 2 * kTileRows;
constexpr size_t kBlockPages = 8, kBlockKeys = kBlockPages * kPageTokens;

struct Buffers {
  size_t dims;       // head_dim rounded up to kTileBf16
  size_t rows;       // rows rounded up to kGroupRows
  uint16_t* q;       // [rows, dims] bf16, zero beyond head_dim and the last row
  float* sums;       // [rows, dims] weighted values, not normalised
  float* largest;    // [rows] what logits are relative to
  float* totals;     // [rows, 16] weights summed lane by lane
  float* logits[2];  // [kGroupRows, kBlockKeys] of two groups; weights take their place
  uint32_t* keys;    // [kBlockPages][dims / 2][16] tiles that are not read in place
  uint32_t* values;  // [kBlockPages][8][dims] pairs of tokens
};

// Up to 32 rows and the slots [first, last) of a block that they read, both even.
struct Group {
  size_t row = 0, rows = 0;
  size_t first = kBlockPages, last = 0;
  bool masked = false;      // some row does not see some key
  float* logits = nullptr;  // [kGroupRows, kBlockKeys]; weights take their place
};

Buffers carve(const AttendArgs& args, std::byte* scratch) {
  Buffers b;
  b.dims = (args.layout->head_dim + kTileBf16 - 1) / kTileBf16 * kTileBf16;
  b.rows = (args.rows + kGroupRows - 1) / kGroupRows * kGroupRows;
  Arena arena(scratch);
  b.q = arena.take<uint16_t>(b.rows * b.dims);
  b.sums = arena.take<float>(b.rows * b.dims);
  b.largest = arena.take<float>(b.rows);
  b.totals = arena.take<float>(b.rows * 16);
  b.logits[0] = arena.take<float>(kGroupRows * kBlockKeys);
  b.logits[1] = arena.take<float>(kGroupRows * kBlockKeys);
  b.keys = arena.take<uint32_t>(kBlockKeys * b.dims / 2);
  b.values = arena.take<uint32_t>(kBlockKeys * b.dims / 2);
  return b;
}

void prepare_rows(const AttendArgs& args, const Buffers& b) {
  __builtin_memset(b.q, 0, b.rows * b.dims * sizeof(uint16_t));
  for (size_t r = 0; r < b.rows; ++r) {
    if (r < args.rows) {
      scale_row<true>(args.q + r * args.q_stride, args.layout->head_dim, args.scale,
                      reinterpret_cast<uint32_t*>(b.q + r * b.dims));
    }
    clear_row(b.sums + r * b.dims, b.dims, b.largest + r, b.totals + r * 16);
  }
  if (args.layout->head_dim == b.dims) return;
  __builtin_memset(b.keys, 0, kBlockKeys * b.dims * sizeof(uint16_t));
  __builtin_memset(b.values, 0, kBlockKeys * b.dims * sizeof(uint16_t));
}

// K tiles in place where they are whole and stored as multiplied; V tiles always gathered, those of
// absent pages zero.
void prepare_block(const AttendArgs& args, const PageBlock& block, const Buffers& b,
                   const uint32_t** k) {
  const size_t head_dim = args.layout->head_dim;
  const bool stored = args.layout->type == KvType::kBF16;
  for (size_t slot = 0; slot < kBlockPages; ++slot) {
    const PageSpan* page = block.pages[slot];
    uint32_t* key_tile = b.keys + slot * kPageTokens * b.dims / 2;
    uint32_t* value_tile = b.values + slot * kPageTokens * b.dims / 2;
    k[slot] = key_tile;
    if (page == nullptr) {
      __builtin_memset(value_tile, 0, kPageTokens * b.dims * sizeof(uint16_t));
      continue;
    }
    if (stored && page->cos_sin == nullptr && head_dim == b.dims) {
      k[slot] = reinterpret_cast<const uint32_t*>(page->k);
    } else {
      bf16_k_tile_avx512(args, *page, key_tile);
    }
    if (stored && head_dim == b.dims) {
      const auto* from = reinterpret_cast<const uint32_t*>(page->v);
      for (size_t i = 0; i < kPageTokens * head_dim / 2; i += 16) {
        _mm512_storeu_si512(value_tile + i, _mm512_loadu_si512(from + i));
      }
    } else {
      bf16_v_tile_avx512(args, *page, value_tile, b.dims);
    }
  }
}

// The next group from `row` that reads something of the block; rows = 0 if there is none.
Group next_group(const AttendArgs& args, const PageBlock& block, size_t row) {
  for (; row < args.rows; row += kGroupRows) {
    Group group;
    group.row = row;
    group.rows = args.rows - row < kGroupRows ? args.rows - row : kGroupRows;
    const RowWindow window = row_window(args, row, group.rows);
    for (size_t slot = 0; slot < kBlockPages; ++slot) {
      const PageSpan* page = block.pages[slot];
      if (page == nullptr || !sees(window, *page)) continue;
      if (group.last == 0) group.first = slot & ~size_t{1};
      group.last = slot / 2 * 2 + 2;
    }
    if (group.last == 0) continue;
    for (size_t slot = 0; slot < kBlockPages; ++slot) {
      const PageSpan* page = block.pages[slot];
      group.masked |= page == nullptr || needs_mask(window, *page);
    }
    return group;
  }
  return {};
}

ScoreProduct score_product(const Buffers& b, const Group& group, const uint32_t* const* k) {
  ScoreProduct product;
  product.q = b.q + group.row * b.dims;
  product.k = k + group.first;
  product.logits = group.logits + group.first * kPageTokens;
  product.dims = b.dims;
  product.pages = group.rows == 0 ? 0 : group.last - group.first;
  product.stride = kBlockKeys;
  return product;
}

SumProduct sum_product(const Buffers& b, const Group& group) {
  SumProduct product;
  product.weights = reinterpret_cast<const uint16_t*>(group.logits) + group.first * kPageTokens;
  product.values = b.values + group.first * kPageTokens * b.dims / 2;
  product.sums = b.sums + group.row * b.dims;
  product.dims = b.dims;
  product.pages = group.last - group.first;
  product.stride = 2 * kBlockKeys;
  return product;
}

// Turns the logits of a row into weights in place.
void weigh_row(const AttendArgs& args, const PageBlock& block, const Buffers& b, const Group& group,
               size_t r) {
  const size_t row = group.row + r;
  float* at = group.logits + r * kBlockKeys;
  __m512 logits[kBlockPages];
  for (size_t slot = 0; slot < kBlockPages; ++slot) {
    logits[slot] = _mm512_loadu_ps(at + slot * kPageTokens);
  }
  if (group.masked || args.soft_cap > 0.0f || args.page_max != nullptr) {
    for (size_t slot = 0; slot < kBlockPages; ++slot) {
      adjust_logits(args, row, block.pages[slot], logits[slot]);
    }
  }
  __m512 top = logits[0];
  for (size_t slot = 1; slot < kBlockPages; ++slot) top = _mm512_max_ps(top, logits[slot]);
  float* totals = b.totals + row * 16;
  raise_largest(top, b.largest + row, totals, b.sums + row * b.dims, b.dims);
  const __m512 largest = _mm512_set1_ps(b.largest[row]);
  __m512 total = _mm512_loadu_ps(totals);
  for (size_t slot = 0; slot < kBlockPages; slot += 2) {
    const __m512 low = exp2_fast_512(_mm512_sub_ps(logits[slot], largest));
    const __m512 high = exp2_fast_512(_mm512_sub_ps(logits[slot + 1], largest));
    total = _mm512_add_ps(total, _mm512_add_ps(low, high));
    const __m512bh packed = _mm512_cvtne2ps_pbh(high, low);
    _mm512_storeu_si512(at + slot * kPageTokens / 2, (__m512i)packed);
  }
  _mm512_storeu_ps(totals, total);
}

// One block for all rows. Beside the vector work of a group runs the tile work of its neighbours:
// first the values of the group before, then, in the same buffer, the logits of the group after.
void attend_block(const AttendArgs& args, const PageBlock& block, const uint32_t* const* k,
                  const Buffers& b) {
  Group group = next_group(args, block, 0);
  if (group.rows == 0) return;
  group.logits = b.logits[0];
  Beside(SumProduct{}, score_product(b, group, k), 1).finish();
  SumProduct sum;
  for (size_t turn = 1; group.rows > 0; ++turn) {
    Group next = next_group(args, block, group.row + kGroupRows);
    next.logits = b.logits[turn % 2];
    Beside beside(sum, score_product(b, next, k), group.rows);
    for (size_t r = 0; r < group.rows; ++r) {
      weigh_row(args, block, b, group, r);
      beside.call();
    }
    beside.finish();
    sum = sum_product(b, group);
    group = next;
  }
  Beside(sum, ScoreProduct{}, 1).finish();
}

}  // namespace

void attend_amx(const AttendArgs& args, std::byte* scratch) {
  clear_page_max(args);
  const Buffers b = carve(args, scratch);
  prepare_rows(args, b);
  load_tile_config();
  PageBlock block;
  const uint32_t* k[kBlockPages];
  for (size_t page = 0; page < args.pages.size();) {
    page = next_block(args, page, kBlockPages, block);
    prepare_block(args, block, b, k);
    attend_block(args, block, k, b);
  }
  _tile_release();
  for (size_t r = 0; r < args.rows; ++r) {
    finish_row(b.sums + r * b.dims, b.largest[r], b.totals + r * 16, args.layout->head_dim,
               args.out + r * args.out_stride, args.lse + r);
  }
}

}  // namespace reprise::kernels

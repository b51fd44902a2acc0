// Prefill with AMX tiles, 32 rows by up to 64 keys at a time. K tiles multiply as they are stored;
// V tiles of two pages are put under each other, so that a product sums 32 tokens. Logits are in
// units of log2.
#include "kernels/amx_tiles.h"
#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"
#include "kernels/attention_tiles.h"
#include "kernels/simd_avx512.h"
#include "kernels/softmax_avx512.h"
#include "kernels/tiles_ahead.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 2 * kTileRows;
constexpr size_t kBlockPages = 4, kBlockKeys = kBlockPages * kPageTokens;
constexpr size_t kWeighedRows = 4;  // at a time
// Logits out of reach have weights above this, the error of exp2_fast_512 included.
constexpr float kReachWeight = 0x1.fp59f;
static_assert(kReach == 60.0f);

struct Buffers {
  size_t dims;         // head_dim rounded up to kTileBf16
  size_t rows;         // rows rounded up to kGroupRows
  uint16_t* q;         // [rows, dims] bf16, zero beyond head_dim and the last row
  float* sums;         // [rows, dims] weighted values, not normalised
  float* base;         // [rows] what logits are relative to
  float* totals;       // [rows, 16] weights summed lane by lane
  RowWindow* windows;  // [rows / kGroupRows]
  float* logits;       // [kGroupRows, kBlockKeys] of one group; weights take their place
  uint32_t* keys;      // [kBlockPages][dims / 2][16] tiles that are not read in place
  uint32_t* values;    // [kBlockPages][8][dims] pairs of tokens
};

// Up to 32 rows and the slots [first, last) of a block that they read, both even.
struct Group {
  size_t row = 0, rows = 0;
  size_t first = kBlockPages, last = 0;
  bool adjusted = false;  // the logits are masked or biased
};

Buffers carve(const AttendArgs& args, std::byte* scratch) {
  Buffers b;
  b.dims = (args.layout->head_dim + kTileBf16 - 1) / kTileBf16 * kTileBf16;
  b.rows = (args.rows + kGroupRows - 1) / kGroupRows * kGroupRows;
  Arena arena(scratch);
  b.q = arena.take<uint16_t>(b.rows * b.dims);
  b.sums = arena.take<float>(b.rows * b.dims);
  b.base = arena.take<float>(b.rows);
  b.totals = arena.take<float>(b.rows * 16);
  b.windows = arena.take<RowWindow>(b.rows / kGroupRows);
  b.logits = arena.take<float>(kGroupRows * kBlockKeys);
  b.keys = arena.take<uint32_t>(kBlockKeys * b.dims / 2);
  b.values = arena.take<uint32_t>(kBlockKeys * b.dims / 2);
  return b;
}

size_t group_rows(const AttendArgs& args, size_t row) {
  return args.rows - row < kGroupRows ? args.rows - row : kGroupRows;
}

void prepare_rows(const AttendArgs& args, const Buffers& b) {
  __builtin_memset(b.q, 0, b.rows * b.dims * sizeof(uint16_t));
  for (size_t r = 0; r < b.rows; ++r) {
    if (r < args.rows) {
      scale_row<true>(args.q_row(r), args.layout->head_dim, args.scale,
                      reinterpret_cast<uint32_t*>(b.q + r * b.dims));
    }
    clear_row(b.sums + r * b.dims, b.dims, b.base + r, b.totals + r * 16);
  }
  for (size_t row = 0; row < args.rows; row += kGroupRows) {
    b.windows[row / kGroupRows] = row_window(args, row, group_rows(args, row));
  }
  if (args.layout->head_dim == b.dims) return;
  __builtin_memset(b.keys, 0, kBlockKeys * b.dims * sizeof(uint16_t));
  __builtin_memset(b.values, 0, kBlockKeys * b.dims * sizeof(uint16_t));
}

// K tiles in place where they are whole and stored as multiplied; V tiles always gathered, those of
// absent pages zero.
void prepare_block(const AttendArgs& args, const PageBlock& block, const Buffers& b,
                   const uint32_t* (&k)[kBlockPages]) {
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

Group find_group(const AttendArgs& args, const PageBlock& block, const Buffers& b, size_t row) {
  Group group;
  group.row = row;
  group.adjusted = args.soft_cap > 0.0f;
  group.rows = group_rows(args, row);
  const RowWindow& window = b.windows[row / kGroupRows];
  for (size_t slot = 0; slot < kBlockPages; ++slot) {
    const PageSpan* page = block.pages[slot];
    group.adjusted |= page == nullptr || needs_adjustment(window, *page);
    if (page == nullptr || !sees(window, *page)) continue;
    if (group.last == 0) group.first = slot & ~size_t{1};
    group.last = slot / 2 * 2 + 2;
  }
  return group;
}

// Brings the tiles of the pages that follow a block closer, a few lines at every call.
class Prefetch {
 public:
  Prefetch(const AttendArgs& args, size_t next, size_t calls)
      : tiles_(args, next), lines_(tiles_.lines() / std::max<size_t>(calls, 1) + 1) {}
  void call() {
    for (size_t i = 0; i < lines_ && !tiles_.done(); ++i) fetch_lines<1, 2>(tiles_.take(1));
  }

 private:
  TilesAhead<kBlockPages> tiles_;
  size_t lines_;
};

// The weights of one row and a block, as they are stored, and their sums lane by lane.
struct Weights {
  __m512i packed[kBlockPages / 2];
  __m512 sums;
};

// Of logits relative to their base.
inline Weights weigh(const __m512 (&logits)[kBlockPages]) {
  Weights w;
  w.sums = _mm512_setzero_ps();
  for (size_t i = 0; i < kBlockPages / 2; ++i) {
    const __m512 low = exp2_fast_512(logits[2 * i]), high = exp2_fast_512(logits[2 * i + 1]);
    w.sums = _mm512_add_ps(w.sums, _mm512_add_ps(low, high));
    w.packed[i] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  }
  return w;
}

// Weights take the place of the row's logits.
inline void store(const Weights& w, float* totals, float* row) {
  for (size_t i = 0; i < kBlockPages / 2; ++i) _mm512_storeu_si512(row + i * 16, w.packed[i]);
  _mm512_storeu_ps(totals, _mm512_add_ps(_mm512_loadu_ps(totals), w.sums));
}

// Weighs one row, whose logits are capped, biased and masked first where kAdjusted.
template <bool kAdjusted>
inline void weigh_row(const AttendArgs& args, const PageBlock& block, const Buffers& b, size_t row,
                      float* at) {
  __m512 logits[kBlockPages], top = _mm512_set1_ps(kNoBase);
  for (size_t slot = 0; slot < kBlockPages; ++slot) {
    logits[slot] = _mm512_loadu_ps(at + slot * kPageTokens);
    if constexpr (kAdjusted)
      logits[slot] = adjust_logits(args, row, block.pages[slot], logits[slot]);
    top = _mm512_max_ps(top, logits[slot]);
  }
  float* totals = b.totals + row * 16;
  move_base(top, b.base + row, totals, b.sums + row * b.dims, b.dims);
  const __m512 base = _mm512_set1_ps(b.base[row]);
  for (__m512& x : logits) x = _mm512_sub_ps(x, base);
  store(weigh(logits), totals, at);
}

// The same for some rows whose logits are as multiplied and whose bases are 0, without a look at
// every logit: false, with nothing changed, if a base is another or if a logit may be out of reach,
// which its weight shows.
inline bool weigh_rows(const Buffers& b, size_t row, float* at) {
  static_assert(kWeighedRows == 4);
  if (_mm_cmp_ps_mask(_mm_loadu_ps(b.base + row), _mm_setzero_ps(), _CMP_NEQ_UQ) != 0) return false;
  Weights w[kWeighedRows];
  __m512 top = _mm512_setzero_ps();
  for (size_t r = 0; r < kWeighedRows; ++r) {
    __m512 logits[kBlockPages];
    for (size_t slot = 0; slot < kBlockPages; ++slot) {
      logits[slot] = _mm512_loadu_ps(at + r * kBlockKeys + slot * kPageTokens);
    }
    w[r] = weigh(logits);
    top = _mm512_max_ps(top, w[r].sums);
  }
  const __m512 limit = _mm512_set1_ps(kReachWeight);
  if (_mm512_cmp_ps_mask(top, limit, _CMP_NLE_UQ) != 0) return false;
  for (size_t r = 0; r < kWeighedRows; ++r) {
    store(w[r], b.totals + (row + r) * 16, at + r * kBlockKeys);
  }
  return true;
}

// The products that follow add to these sums.
inline void fetch_sums(const Buffers& b, size_t row) {
  const float *at = b.sums + row * b.dims, *end = at + kWeighedRows * b.dims;
  for (; at < end; at += 16) _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
}

void weigh_group(const AttendArgs& args, const PageBlock& block, const Buffers& b,
                 const Group& group, Prefetch& prefetch) {
  for (size_t r = 0; r < group.rows; r += kWeighedRows) {
    prefetch.call();
    fetch_sums(b, group.row + r);
    float* at = b.logits + r * kBlockKeys;
    if (!group.adjusted && weigh_rows(b, group.row + r, at)) continue;
    const size_t left = group.rows - r, rows = left < kWeighedRows ? left : kWeighedRows;
    for (size_t i = 0; i < rows; ++i, at += kBlockKeys) {
      if (group.adjusted) {
        weigh_row<true>(args, block, b, group.row + r + i, at);
      } else {
        weigh_row<false>(args, block, b, group.row + r + i, at);
      }
    }
  }
}

// One block for all rows.
void attend_block(const AttendArgs& args, const PageBlock& block, size_t next_page,
                  const uint32_t* const* k, const Buffers& b) {
  Prefetch prefetch(args, next_page, args.rows / kWeighedRows);
  for (size_t row = 0; row < args.rows; row += kGroupRows) {
    const Group group = find_group(args, block, b, row);
    if (group.last == 0) continue;
    const size_t pages = group.last - group.first, key = group.first * kPageTokens;
    multiply_keys(b.q + row * b.dims, k + group.first, pages, b.dims, b.logits + key, kBlockKeys);
    weigh_group(args, block, b, group, prefetch);
    multiply_values(reinterpret_cast<const uint16_t*>(b.logits) + key, 2 * kBlockKeys,
                    b.values + key * b.dims / 2, pages, b.dims, b.sums + row * b.dims);
  }
}

}  // namespace

void attend_prefill_amx(const AttendArgs& args, std::byte* scratch) {
  const Buffers b = carve(args, scratch);
  prepare_rows(args, b);
  load_tile_config();
  PageBlock block;
  const uint32_t* k[kBlockPages];
  for (size_t page = 0; page < args.pages.size();) {
    page = next_block(args, page, kBlockPages, block);
    prepare_block(args, block, b, k);
    attend_block(args, block, page, k, b);
  }
  _tile_release();
  for (size_t r = 0; r < args.rows; ++r) {
    finish_row(b.sums + r * b.dims, b.base[r], b.totals + r * 16, args.layout->head_dim,
               args.out_row(r), args.lse + r);
  }
}

}  // namespace reprise::kernels

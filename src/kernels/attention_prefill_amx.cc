// Prefill with AMX tiles, 32 rows by up to 64 keys at a time. K tiles multiply as they are stored;
// V tiles of two pages are put under each other, so that a product sums 32 tokens. Logits are in
// units of log2.
#include "kernels/amx_tiles.h"
#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"
#include "kernels/attention_tiles.h"
#include "kernels/simd_avx512.h"
#include "kernels/softmax_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 2 * kTileRows;
constexpr size_t kBlockPages = 4, kBlockKeys = kBlockPages * kPageTokens;

struct Buffers {
  size_t dims;         // head_dim rounded up to kTileBf16
  size_t rows;         // rows rounded up to kGroupRows
  uint16_t* q;         // [rows, dims] bf16, zero beyond head_dim and the last row
  float* sums;         // [rows, dims] weighted values, not normalised
  float* base;         // [rows] what logits are relative to
  float* totals;       // [rows, 16] weights summed lane by lane
  RowWindow* windows;  // [rows / kGroupRows]
  float* q_norms;      // [rows / kGroupRows] largest norm of the group's rows
  float* logits;       // [kGroupRows, kBlockKeys] of one group; weights take their place
  uint32_t* keys;      // [kBlockPages][dims / 2][16] tiles that are not read in place
  uint32_t* values;    // [kBlockPages][8][dims] pairs of tokens
};

// A block as it is multiplied.
struct Tiles {
  const uint32_t* k[kBlockPages];
  float norm;  // at least the largest norm of a key that somebody sees
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
  b.q_norms = arena.take<float>(b.rows / kGroupRows);
  b.logits = arena.take<float>(kGroupRows * kBlockKeys);
  b.keys = arena.take<uint32_t>(kBlockKeys * b.dims / 2);
  b.values = arena.take<uint32_t>(kBlockKeys * b.dims / 2);
  return b;
}

// Sums of squares of pairs of bf16, lane by lane, over `count` vectors.
__m512 squares(const void* vectors, size_t count) {
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                    _mm512_setzero_ps()};
  const auto* from = static_cast<const __m512i*>(vectors);
  for (size_t i = 0; i < count; ++i) {
    const __m512bh x = (__m512bh)_mm512_loadu_si512(from + i);
    sums[i % 4] = _mm512_dpbf16_ps(sums[i % 4], x, x);
  }
  return _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
}

size_t group_rows(const AttendArgs& args, size_t row) {
  return args.rows - row < kGroupRows ? args.rows - row : kGroupRows;
}

void prepare_rows(const AttendArgs& args, const Buffers& b) {
  __builtin_memset(b.q, 0, b.rows * b.dims * sizeof(uint16_t));
  for (size_t r = 0; r < b.rows; ++r) {
    if (r < args.rows) {
      scale_row<true>(args.q + r * args.q_stride, args.layout->head_dim, args.scale,
                      reinterpret_cast<uint32_t*>(b.q + r * b.dims));
    }
    clear_row(b.sums + r * b.dims, b.dims, b.base + r, b.totals + r * 16);
    const float norm =
        __builtin_sqrtf(_mm512_reduce_add_ps(squares(b.q + r * b.dims, b.dims / kTileBf16)));
    float& largest = b.q_norms[r / kGroupRows];
    if (r % kGroupRows == 0 || norm > largest) largest = norm;
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
void prepare_block(const AttendArgs& args, const PageBlock& block, const Buffers& b, Tiles& tiles) {
  const size_t head_dim = args.layout->head_dim;
  const bool stored = args.layout->type == KvType::kBF16;
  __m512 largest = _mm512_setzero_ps();
  for (size_t slot = 0; slot < kBlockPages; ++slot) {
    const PageSpan* page = block.pages[slot];
    uint32_t* key_tile = b.keys + slot * kPageTokens * b.dims / 2;
    uint32_t* value_tile = b.values + slot * kPageTokens * b.dims / 2;
    tiles.k[slot] = key_tile;
    if (page == nullptr) {
      __builtin_memset(value_tile, 0, kPageTokens * b.dims * sizeof(uint16_t));
      continue;
    }
    if (stored && page->cos_sin == nullptr && head_dim == b.dims) {
      tiles.k[slot] = reinterpret_cast<const uint32_t*>(page->k);
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
    largest = _mm512_mask_max_ps(largest, page->slots, largest, squares(tiles.k[slot], b.dims / 2));
  }
  tiles.norm = __builtin_sqrtf(_mm512_reduce_max_ps(largest));
}

Group find_group(const AttendArgs& args, const PageBlock& block, const Buffers& b, size_t row) {
  Group group;
  group.row = row;
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
      : tile_bytes_(args.layout->tile_bytes()) {
    const size_t left = args.pages.size() - next;
    for (size_t i = 0; i < left && i < kBlockPages; ++i) {
      tiles_[tiles_left_++] = args.pages.data()[next + i].v;
      tiles_[tiles_left_++] = args.pages.data()[next + i].k;
    }
    lines_ = tiles_left_ * tile_bytes_ / kLine / std::max<size_t>(calls, 1) + 1;
  }
  void call() {
    for (size_t i = 0; i < lines_ && tiles_left_ > 0; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(tiles_[tiles_left_ - 1] + offset_), _MM_HINT_T1);
      offset_ += kLine;
      if (offset_ < tile_bytes_) continue;
      offset_ = 0;
      --tiles_left_;
    }
  }

 private:
  static constexpr size_t kLine = 64;
  const std::byte* tiles_[2 * kBlockPages];
  size_t tile_bytes_, tiles_left_ = 0, offset_ = 0, lines_ = 0;
};

// Turns logits, relative to their base, into weights in place and adds them up.
inline void weigh_slots(const __m512 (&logits)[kBlockPages], float* totals, float* out) {
  __m512 total = _mm512_loadu_ps(totals);
  for (size_t slot = 0; slot < kBlockPages; slot += 2) {
    const __m512 low = exp2_fast_512(logits[slot]), high = exp2_fast_512(logits[slot + 1]);
    total = _mm512_add_ps(total, _mm512_add_ps(low, high));
    const __m512bh packed = _mm512_cvtne2ps_pbh(high, low);
    _mm512_storeu_si512(out + slot * kPageTokens / 2, (__m512i)packed);
  }
  _mm512_storeu_ps(totals, total);
}

// Any row: cap, bias, mask, move the base.
void weigh_row(const AttendArgs& args, const PageBlock& block, const Buffers& b, const Group& group,
               size_t r) {
  const size_t row = group.row + r;
  float* at = b.logits + r * kBlockKeys;
  __m512 logits[kBlockPages], top = _mm512_set1_ps(kNoBase);
  for (size_t slot = 0; slot < kBlockPages; ++slot) {
    const __m512 product = _mm512_loadu_ps(at + slot * kPageTokens);
    logits[slot] = adjust_logits(args, row, block.pages[slot], product);
    top = _mm512_max_ps(top, logits[slot]);
  }
  float* totals = b.totals + row * 16;
  move_base(top, b.base + row, totals, b.sums + row * b.dims, b.dims);
  const __m512 base = _mm512_set1_ps(b.base[row]);
  for (__m512& x : logits) x = _mm512_sub_ps(x, base);
  weigh_slots(logits, totals, at);
}

// Whether the logits of a group can be weighed as they are: no mask, cap or bias, and the norms
// bound them so that every base is or becomes 0, as move_base would have it.
bool is_plain(const AttendArgs& args, const Buffers& b, const Group& group, const Tiles& tiles) {
  constexpr float kRounding = 1.001f;
  const float bound = b.q_norms[group.row / kGroupRows] * tiles.norm * kRounding;
  if (group.adjusted || args.soft_cap > 0.0f) return false;
  if (!(bound <= kReach)) return false;
  for (size_t half = 0; half < kGroupRows; half += kTileRows) {
    float* at = b.base + group.row + half;
    const __m512 base = _mm512_loadu_ps(at);
    const __mmask16 fresh = _mm512_cmp_ps_mask(base, _mm512_set1_ps(kNoBase), _CMP_EQ_OQ);
    _mm512_mask_storeu_ps(at, fresh, _mm512_setzero_ps());
    if (_mm512_mask_cmp_ps_mask(~fresh, base, _mm512_setzero_ps(), _CMP_NEQ_UQ) != 0) return false;
  }
  return true;
}

void weigh_group(const AttendArgs& args, const PageBlock& block, const Tiles& tiles,
                 const Buffers& b, const Group& group, Prefetch& prefetch) {
  const bool plain = is_plain(args, b, group, tiles);
  for (size_t r = 0; r < group.rows; ++r) {
    prefetch.call();
    if (!plain) {
      weigh_row(args, block, b, group, r);
      continue;
    }
    float* at = b.logits + r * kBlockKeys;
    __m512 logits[kBlockPages];
    for (size_t slot = 0; slot < kBlockPages; ++slot) {
      logits[slot] = _mm512_loadu_ps(at + slot * kPageTokens);
    }
    weigh_slots(logits, b.totals + (group.row + r) * 16, at);
  }
}

// One block for all rows.
void attend_block(const AttendArgs& args, const PageBlock& block, size_t next_page,
                  const Tiles& tiles, const Buffers& b) {
  Prefetch prefetch(args, next_page, args.rows);
  for (size_t row = 0; row < args.rows; row += kGroupRows) {
    const Group group = find_group(args, block, b, row);
    if (group.last == 0) continue;
    const size_t pages = group.last - group.first, key = group.first * kPageTokens;
    multiply_keys(b.q + row * b.dims, tiles.k + group.first, pages, b.dims, b.logits + key,
                  kBlockKeys);
    weigh_group(args, block, tiles, b, group, prefetch);
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
  Tiles tiles;
  for (size_t page = 0; page < args.pages.size();) {
    page = next_block(args, page, kBlockPages, block);
    prepare_block(args, block, b, tiles);
    attend_block(args, block, page, tiles, b);
  }
  _tile_release();
  for (size_t r = 0; r < args.rows; ++r) {
    finish_row(b.sums + r * b.dims, b.base[r], b.totals + r * 16, args.layout->head_dim,
               args.out + r * args.out_stride, args.lse + r);
  }
}

}  // namespace reprise::kernels

// Attention with AVX-512: groups of up to 4 rows share every load of K and V. Logits are kept in
// units of log2, so that the softmax needs no further scaling.
#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"
#include "kernels/attention_tiles.h"
#include "kernels/simd_avx512.h"
#include "kernels/softmax_avx512.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 4, kPagesAtOnce = 4, kVectorsAtOnce = 4, kLanes = 16;
constexpr size_t kBlockKeys = kMaxBlockPages * kPageTokens;
constexpr size_t kAhead = 4;  // tiles between use and prefetch

// A lane of a vector is a pair of bf16.
struct Bf16Math {
  static constexpr size_t kPacked = 2;
  static constexpr bool kRounds = true;
  static __m512 mac(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static void store(uint32_t* out, __m512 values) {
    const __m256bh packed = _mm512_cvtneps_pbh(values);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), (__m256i)packed);
  }
  static void convert_k(const AttendArgs& args, const PageSpan& page, uint32_t* out) {
    bf16_k_tile_avx512(args, page, out);
  }
  static void convert_v(const AttendArgs& args, const PageSpan& page, uint32_t* out) {
    bf16_v_tile_avx512(args, page, out, args.layout->head_dim);
  }
};

// A lane of a vector is a float.
struct FloatMath {
  static constexpr size_t kPacked = 1;
  static constexpr bool kRounds = false;
  static __m512 mac(__m512 sum, __m512i a, __m512i b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
  }
  static void store(uint32_t* out, __m512 values) { _mm512_storeu_ps(out, values); }
  static void convert_k(const AttendArgs& args, const PageSpan& page, uint32_t* out) {
    float_k_tile_avx512(args, page, reinterpret_cast<float*>(out));
  }
  static void convert_v(const AttendArgs& args, const PageSpan& page, uint32_t* out) {
    float_v_tile_avx512(args, page, reinterpret_cast<float*>(out), args.layout->head_dim);
  }
};

struct Buffers {
  size_t dims;        // head_dim rounded up to whole vectors
  uint32_t* q;        // [rows, head_dim / packed]
  float* sums;        // [rows, dims] weighted values, not normalised
  float* largest;     // [rows] largest logit so far
  float* totals;      // [rows, 16] weights summed lane by lane
  float* logits;      // [kGroupRows, kBlockKeys]
  uint32_t* weights;  // [kGroupRows, kBlockKeys / packed]
  uint32_t* keys;     // [kMaxBlockPages] converted K tiles
  uint32_t* values;   // [kMaxBlockPages] converted V tiles
};

// The block in the form that is multiplied, in reading order: K tiles, V tiles, the next block.
struct Tiles {
  const uint32_t* k[kMaxBlockPages];
  const uint32_t* v[kMaxBlockPages];
  const uint32_t* order[2 * kMaxBlockPages + kAhead];
};

// Slots of a block that a group of rows reads.
struct Visible {
  size_t count = 0;
  uint8_t slot[kMaxBlockPages];
  bool masked[kMaxBlockPages];
};

Buffers carve(const AttendArgs& args, std::byte* scratch) {
  Buffers b;
  const size_t head_dim = args.layout->head_dim, rows = args.rows;
  b.dims = (head_dim + kLanes - 1) / kLanes * kLanes;
  Arena arena(scratch);
  b.q = arena.take<uint32_t>(rows * head_dim);
  b.sums = arena.take<float>(rows * b.dims);
  b.largest = arena.take<float>(rows);
  b.totals = arena.take<float>(rows * kLanes);
  b.logits = arena.take<float>(kGroupRows * kBlockKeys);
  b.weights = arena.take<uint32_t>(kGroupRows * kBlockKeys);
  b.keys = arena.take<uint32_t>(kBlockKeys * head_dim);
  b.values = arena.take<uint32_t>(kBlockKeys * head_dim);
  return b;
}

template <typename Math>
void prepare_rows(const AttendArgs& args, const Buffers& b) {
  const size_t head_dim = args.layout->head_dim, steps = head_dim / Math::kPacked;
  for (size_t r = 0; r < args.rows; ++r) {
    scale_row<Math::kRounds>(args.q + r * args.q_stride, head_dim, args.scale, b.q + r * steps);
    clear_row(b.sums + r * b.dims, b.dims, b.largest + r, b.totals + r * kLanes);
  }
}

// Points at the tiles of a block, converting those that are not stored as they are multiplied.
template <typename Math>
void prepare_block(const AttendArgs& args, const PageBlock& block, size_t next, const Buffers& b,
                   Tiles& tiles) {
  const size_t tile = kPageTokens * args.layout->head_dim / Math::kPacked;
  const bool stored = args.layout->type == KvType::kBF16;
  for (size_t slot = 0; slot < block.slots; ++slot) {
    const PageSpan* page = block.pages[slot];
    if (page == nullptr) {
      tiles.k[slot] = tiles.v[slot] = nullptr;
      continue;
    }
    tiles.k[slot] = reinterpret_cast<const uint32_t*>(page->k);
    tiles.v[slot] = reinterpret_cast<const uint32_t*>(page->v);
    if (!stored || page->cos_sin != nullptr) {
      Math::convert_k(args, *page, b.keys + slot * tile);
      tiles.k[slot] = b.keys + slot * tile;
    }
    if (!stored) {
      Math::convert_v(args, *page, b.values + slot * tile);
      tiles.v[slot] = b.values + slot * tile;
    }
    tiles.order[slot] = tiles.k[slot];
    tiles.order[block.slots + slot] = tiles.v[slot];
  }
  for (size_t i = 0; i < kAhead; ++i) {
    const bool more = stored && next + i < args.pages.size();
    tiles.order[2 * block.slots + i] =
        more ? reinterpret_cast<const uint32_t*>(args.pages.data()[next + i].k) : b.q;
  }
}

Visible visible_pages(const PageBlock& block, const RowWindow& window) {
  Visible visible;
  for (size_t slot = 0; slot < block.slots; ++slot) {
    const PageSpan* page = block.pages[slot];
    if (page == nullptr || !sees(window, *page)) continue;
    visible.slot[visible.count] = static_cast<uint8_t>(slot);
    visible.masked[visible.count++] = needs_mask(window, *page);
  }
  return visible;
}

// logits[r][slot] of R rows and P pages.
template <typename Math, int R, int P>
void score_pages(const uint32_t* q, size_t steps, const Tiles& tiles, const uint8_t* slots,
                 float* logits) {
  __m512 sums[R][P];
  const uint32_t *k[P], *ahead[P];
  for (int p = 0; p < P; ++p) {
    k[p] = tiles.k[slots[p]];
    ahead[p] = tiles.order[slots[p] + kAhead];
    for (int r = 0; r < R; ++r) sums[r][p] = _mm512_setzero_ps();
  }
  for (size_t step = 0; step < steps; ++step) {
    __m512i keys[P];
    for (int p = 0; p < P; ++p) {
      keys[p] = _mm512_loadu_si512(k[p] + step * kLanes);
      _mm_prefetch(reinterpret_cast<const char*>(ahead[p] + step * kLanes), _MM_HINT_T0);
    }
    for (int r = 0; r < R; ++r) {
      const __m512i query = _mm512_set1_epi32(static_cast<int>(q[r * steps + step]));
      for (int p = 0; p < P; ++p) sums[r][p] = Math::mac(sums[r][p], query, keys[p]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) {
      _mm512_storeu_ps(logits + r * kBlockKeys + slots[p] * kPageTokens, sums[r][p]);
    }
  }
}

// sums[r][dim..] = sums * keep + weights x values, of R rows and N vectors of dims.
template <typename Math, int R, int N>
void sum_values(const uint32_t* weights, size_t slots, const Tiles& tiles, const Visible& visible,
                size_t head_dim, size_t dim, const float* keep, float* sums, size_t stride) {
  constexpr size_t kSteps = kPageTokens / Math::kPacked;
  const __mmask16 last = first_lanes(static_cast<unsigned>(head_dim - dim - (N - 1) * kLanes));
  __m512 acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      const __m512 sum = _mm512_loadu_ps(sums + r * stride + dim + n * kLanes);
      acc[r][n] = _mm512_mul_ps(sum, _mm512_set1_ps(keep[r]));
    }
  }
  for (size_t i = 0; i < visible.count; ++i) {
    const size_t slot = visible.slot[i];
    const uint32_t* v = tiles.v[slot] + dim;
    const uint32_t* ahead = tiles.order[slots + slot + kAhead] + dim;
    const uint32_t* w = weights + slot * kSteps;
    for (size_t step = 0; step < kSteps; ++step, v += head_dim, ahead += head_dim, ++w) {
      __m512i values[N];
      for (int n = 0; n < N; ++n) {
        values[n] = n + 1 < N ? _mm512_loadu_si512(v + n * kLanes)
                              : _mm512_maskz_loadu_epi32(last, v + n * kLanes);
        _mm_prefetch(reinterpret_cast<const char*>(ahead + n * kLanes), _MM_HINT_T0);
      }
      for (int r = 0; r < R; ++r) {
        const __m512i weight =
            _mm512_set1_epi32(static_cast<int>(w[r * kBlockKeys / Math::kPacked]));
        for (int n = 0; n < N; ++n) acc[r][n] = Math::mac(acc[r][n], weight, values[n]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) _mm512_storeu_ps(sums + r * stride + dim + n * kLanes, acc[r][n]);
  }
}

// Caps, masks and reports the logits of a row; returns the largest.
float finish_logits(const AttendArgs& args, size_t row, const PageBlock& block,
                    const Visible& visible, float* logits) {
  __m512 largest = _mm512_set1_ps(kNoLogit);
  for (size_t i = 0; i < visible.count; ++i) {
    const PageSpan& page = *block.pages[visible.slot[i]];
    float* at = logits + visible.slot[i] * kPageTokens;
    __m512 x = _mm512_loadu_ps(at);
    if (args.soft_cap > 0.0f) x = cap_logits(x, args.soft_cap);
    if (visible.masked[i]) x = mask_logits(x, visible_slots(args, row, page));
    if (visible.masked[i] || args.soft_cap > 0.0f) _mm512_storeu_ps(at, x);
    largest = _mm512_max_ps(largest, x);
    if (args.page_max != nullptr) {
      const size_t number = static_cast<size_t>(&page - args.pages.data());
      args.page_max[row * args.pages.size() + number] = kLn2 * _mm512_reduce_max_ps(x);
    }
  }
  return _mm512_reduce_max_ps(largest);
}

// Turns the logits of a row into weights; returns the factor of what was summed before.
template <typename Math>
float weigh(const Visible& visible, float largest, const float* logits, float* old_largest,
            float* totals, uint32_t* weights) {
  const float next = largest > *old_largest ? largest : *old_largest;
  const __m512 top = _mm512_set1_ps(next);
  const __m512 keep = exp2_512(_mm512_set1_ps(*old_largest - next));
  __m512 total = _mm512_mul_ps(_mm512_loadu_ps(totals), keep);
  for (size_t i = 0; i < visible.count; ++i) {
    const size_t slot = visible.slot[i];
    const __m512 x = _mm512_loadu_ps(logits + slot * kPageTokens);
    const __m512 weight = exp2_512(_mm512_sub_ps(x, top));
    total = _mm512_add_ps(total, weight);
    Math::store(weights + slot * kPageTokens / Math::kPacked, weight);
  }
  _mm512_storeu_ps(totals, total);
  *old_largest = next;
  return _mm512_cvtss_f32(keep);
}

// One block for R rows.
template <typename Math, int R>
void attend_group(const AttendArgs& args, size_t row, const PageBlock& block, const Tiles& tiles,
                  const Buffers& b) {
  const Visible visible = visible_pages(block, row_window(args, row, R));
  if (visible.count == 0) return;
  const size_t head_dim = args.layout->head_dim, steps = head_dim / Math::kPacked;
  const uint32_t* q = b.q + row * steps;
  size_t i = 0;
  for (; i + kPagesAtOnce <= visible.count; i += kPagesAtOnce) {
    score_pages<Math, R, kPagesAtOnce>(q, steps, tiles, visible.slot + i, b.logits);
  }
  for (; i < visible.count; ++i) {
    score_pages<Math, R, 1>(q, steps, tiles, visible.slot + i, b.logits);
  }
  float keep[R];
  for (int r = 0; r < R; ++r) {
    float* logits = b.logits + r * kBlockKeys;
    const float largest = finish_logits(args, row + r, block, visible, logits);
    keep[r] =
        weigh<Math>(visible, largest, logits, b.largest + row + r, b.totals + (row + r) * kLanes,
                    b.weights + r * kBlockKeys / Math::kPacked);
  }
  float* sums = b.sums + row * b.dims;
  const auto add = [&]<int N>(size_t dim) {
    sum_values<Math, R, N>(b.weights, block.slots, tiles, visible, head_dim, dim, keep, sums,
                           b.dims);
  };
  size_t dim = 0;
  for (; dim + kVectorsAtOnce * kLanes <= b.dims; dim += kVectorsAtOnce * kLanes) {
    add.template operator()<kVectorsAtOnce>(dim);
  }
  for (; dim < b.dims; dim += kLanes) add.template operator()<1>(dim);
}

template <typename Math>
void attend_block(const AttendArgs& args, const PageBlock& block, const Tiles& tiles,
                  const Buffers& b) {
  size_t row = 0;
  for (; row + kGroupRows <= args.rows; row += kGroupRows) {
    attend_group<Math, kGroupRows>(args, row, block, tiles, b);
  }
  switch (args.rows - row) {
    case 3:
      return attend_group<Math, 3>(args, row, block, tiles, b);
    case 2:
      return attend_group<Math, 2>(args, row, block, tiles, b);
    case 1:
      return attend_group<Math, 1>(args, row, block, tiles, b);
  }
}

template <typename Math>
void attend_pages(const AttendArgs& args, std::byte* scratch) {
  const Buffers b = carve(args, scratch);
  prepare_rows<Math>(args, b);
  PageBlock block;
  Tiles tiles;
  for (size_t page = 0; page < args.pages.size();) {
    page = next_block(args, page, kMaxBlockPages, block);
    prepare_block<Math>(args, block, page, b, tiles);
    attend_block<Math>(args, block, tiles, b);
  }
  for (size_t r = 0; r < args.rows; ++r) {
    finish_row(b.sums + r * b.dims, b.largest[r], b.totals + r * kLanes, args.layout->head_dim,
               args.out + r * args.out_stride, args.lse + r);
  }
}

}  // namespace

void attend_avx512(const AttendArgs& args, std::byte* scratch) {
  clear_page_max(args);
  const KvType type = args.layout->type;
  if (type == KvType::kBF16 || type == KvType::kQ8_0) return attend_pages<Bf16Math>(args, scratch);
  attend_pages<FloatMath>(args, scratch);
}

}  // namespace reprise::kernels

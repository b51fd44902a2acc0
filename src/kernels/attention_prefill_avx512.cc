// Prefill with AVX-512: groups of up to 4 rows share every load of K and V, and logits go from
// registers to weights four pages at a time. Logits are in units of log2.
#include <algorithm>

#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"
#include "kernels/attention_tiles.h"
#include "kernels/simd_avx512.h"
#include "kernels/softmax_avx512.h"
#include "kernels/tiles_ahead.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 4, kUnitPages = 4, kVectorsAtOnce = 4, kLanes = 16;

// A lane of a vector is a pair of bf16.
struct Bf16Math {
  static constexpr size_t kPacked = 2;
  static constexpr bool kRounds = true;
  static __m512 mac(__m512 sum, __m512i a, __m512i b) { return add_bf16_products(sum, a, b); }
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
  size_t dims;       // head_dim rounded up to whole vectors
  uint32_t* q;       // [rows, head_dim / packed]
  float* sums;       // [rows, dims] weighted values, not normalised
  float* base;       // [rows] what logits are relative to
  float* totals;     // [rows, 16] weights summed lane by lane
  uint32_t* keys;    // [kMaxBlockPages] converted K tiles
  uint32_t* values;  // [kMaxBlockPages] converted V tiles
};

// The block in the form that is multiplied. Absent pages point at tiles that exist; their logits
// are masked.
struct Tiles {
  const uint32_t *k[kMaxBlockPages], *v[kMaxBlockPages];
};

using Ahead = TilesAhead<kUnitPages>;

// Four slots of a block.
struct Unit {
  const PageSpan* const* pages;  // null = absent
  const uint32_t* const* k;      // tiles
  const uint32_t* const* v;
  bool adjusted;  // the logits are masked or biased
};

Buffers carve(const AttendArgs& args, std::byte* scratch) {
  Buffers b;
  const size_t head_dim = args.layout->head_dim, rows = args.rows;
  b.dims = (head_dim + kLanes - 1) / kLanes * kLanes;
  Arena arena(scratch);
  b.q = arena.take<uint32_t>(rows * head_dim);
  b.sums = arena.take<float>(rows * b.dims);
  b.base = arena.take<float>(rows);
  b.totals = arena.take<float>(rows * kLanes);
  b.keys = arena.take<uint32_t>(kMaxBlockPages * kPageTokens * head_dim);
  b.values = arena.take<uint32_t>(kMaxBlockPages * kPageTokens * head_dim);
  return b;
}

template <typename Math>
void prepare_rows(const AttendArgs& args, const Buffers& b) {
  const size_t head_dim = args.layout->head_dim, steps = head_dim / Math::kPacked;
  for (size_t r = 0; r < args.rows; ++r) {
    scale_row<Math::kRounds>(args.q_row(r), head_dim, args.scale, b.q + r * steps);
    clear_row(b.sums + r * b.dims, b.dims, b.base + r, b.totals + r * kLanes);
  }
}

// Points at the tiles of a block, converting those that are not stored as they are multiplied.
template <typename Math>
void prepare_block(const AttendArgs& args, const PageBlock& block, const Buffers& b, Tiles& tiles) {
  const size_t tile = kPageTokens * args.layout->head_dim / Math::kPacked;
  const bool stored = args.layout->type == KvType::kBF16;
  const uint32_t *some_k = nullptr, *some_v = nullptr;
  for (size_t slot = 0; slot < block.slots; ++slot) {
    const PageSpan* page = block.pages[slot];
    if (page == nullptr) continue;
    some_k = reinterpret_cast<const uint32_t*>(page->k);
    some_v = reinterpret_cast<const uint32_t*>(page->v);
    if (!stored || page->cos_sin != nullptr) {
      Math::convert_k(args, *page, b.keys + slot * tile);
      some_k = b.keys + slot * tile;
    }
    if (!stored) {
      Math::convert_v(args, *page, b.values + slot * tile);
      some_v = b.values + slot * tile;
    }
    tiles.k[slot] = some_k;
    tiles.v[slot] = some_v;
  }
  for (size_t slot = 0; slot < kMaxBlockPages; ++slot) {
    if (slot < block.slots && block.pages[slot] != nullptr) continue;
    tiles.k[slot] = some_k;
    tiles.v[slot] = some_v;
  }
}

// logits[r][page] of R rows and the pages of a unit.
template <typename Math, int R>
inline void score_unit(const uint32_t* q, size_t steps, const Unit& unit, Ahead& ahead,
                       __m512 (&logits)[R][kUnitPages]) {
  for (int r = 0; r < R; ++r) {
    for (__m512& sum : logits[r]) sum = _mm512_setzero_ps();
  }
  // The tiles of two pages of the next unit are fetched meanwhile, a quarter each.
  for (size_t quarter = 0, step = 0; quarter < 4; ++quarter) {
    const size_t end = steps * (quarter + 1) / 4;
    const std::byte* next = ahead.take((end - step) * kUnitPages);
    for (; step < end; ++step, next += kUnitPages * kLine) {
      __m512i keys[kUnitPages];
      for (size_t p = 0; p < kUnitPages; ++p) {
        keys[p] = _mm512_loadu_si512(unit.k[p] + step * kLanes);
      }
      fetch_lines<kUnitPages, 3>(next);
      for (int r = 0; r < R; ++r) {
        const __m512i query = _mm512_set1_epi32(static_cast<int>(q[r * steps + step]));
        for (size_t p = 0; p < kUnitPages; ++p) {
          logits[r][p] = Math::mac(logits[r][p], query, keys[p]);
        }
      }
    }
  }
}

// sums[r][dim..] += weights x values, of R rows and N vectors of dims.
template <typename Math, int R, int N>
inline void sum_unit(const uint32_t* weights, const Unit& unit, size_t head_dim, size_t dim,
                     Ahead& ahead, float* sums, size_t stride) {
  constexpr size_t kSteps = kPageTokens / Math::kPacked;
  const __mmask16 last = first_lanes(static_cast<unsigned>(head_dim - dim - (N - 1) * kLanes));
  __m512 acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = _mm512_loadu_ps(sums + r * stride + dim + n * kLanes);
  }
  for (size_t p = 0; p < kUnitPages; ++p) {
    const uint32_t* v = unit.v[p] + dim;
    const std::byte* next = ahead.take(kSteps * N);
#pragma GCC unroll 1  // or all fetches are issued at once, more than can be under way
    for (size_t step = 0; step < kSteps; ++step, v += head_dim, next += N * kLine, ++weights) {
      __m512i values[N];
      for (int n = 0; n < N; ++n) {
        values[n] = n + 1 < N ? _mm512_loadu_si512(v + n * kLanes)
                              : _mm512_maskz_loadu_epi32(last, v + n * kLanes);
      }
      fetch_lines<N, 3>(next);
      for (int r = 0; r < R; ++r) {
        const __m512i weight =
            _mm512_set1_epi32(static_cast<int>(weights[r * kUnitPages * kSteps]));
        for (int n = 0; n < N; ++n) acc[r][n] = Math::mac(acc[r][n], weight, values[n]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) _mm512_storeu_ps(sums + r * stride + dim + n * kLanes, acc[r][n]);
  }
}

// Turns the logits of one row into weights.
template <typename Math>
inline void weigh(const AttendArgs& args, size_t row, const Unit& unit, const Buffers& b,
                  __m512 (&logits)[kUnitPages], uint32_t* weights) {
  if (unit.adjusted || args.soft_cap > 0.0f) {
    for (size_t p = 0; p < kUnitPages; ++p) {
      logits[p] = adjust_logits(args, row, unit.pages[p], logits[p]);
    }
  }
  const __m512 top =
      _mm512_max_ps(_mm512_max_ps(logits[0], logits[1]), _mm512_max_ps(logits[2], logits[3]));
  float* totals = b.totals + row * kLanes;
  move_base(top, b.base + row, totals, b.sums + row * b.dims, b.dims);
  const __m512 base = _mm512_set1_ps(b.base[row]);
  __m512 total = _mm512_loadu_ps(totals);
  for (size_t p = 0; p < kUnitPages; ++p) {
    const __m512 weight = exp2_512(_mm512_sub_ps(logits[p], base));
    total = _mm512_add_ps(total, weight);
    Math::store(weights + p * kPageTokens / Math::kPacked, weight);
  }
  _mm512_storeu_ps(totals, total);
}

// One unit for R rows.
template <typename Math, int R>
void attend_unit(const AttendArgs& args, size_t row, const Unit& unit, const Buffers& b,
                 Ahead& ahead) {
  constexpr size_t kWeights = kUnitPages * kPageTokens / Math::kPacked;
  const size_t head_dim = args.layout->head_dim, steps = head_dim / Math::kPacked;
  __m512 logits[R][kUnitPages];
  score_unit<Math, R>(b.q + row * steps, steps, unit, ahead, logits);
  alignas(64) uint32_t weights[R * kWeights];
  for (int r = 0; r < R; ++r) {
    weigh<Math>(args, row + r, unit, b, logits[r], weights + r * kWeights);
  }
  float* sums = b.sums + row * b.dims;
  size_t dim = 0;
  for (; dim + kVectorsAtOnce * kLanes <= b.dims; dim += kVectorsAtOnce * kLanes) {
    sum_unit<Math, R, kVectorsAtOnce>(weights, unit, head_dim, dim, ahead, sums, b.dims);
  }
  for (; dim < b.dims; dim += kLanes) {
    sum_unit<Math, R, 1>(weights, unit, head_dim, dim, ahead, sums, b.dims);
  }
}

// One unit for R rows, if they read any of it.
template <typename Math, int R>
void attend_group(const AttendArgs& args, size_t row, Unit unit, const Buffers& b, Ahead& ahead) {
  const RowWindow window = row_window(args, row, R);
  bool seen = false;
  for (size_t p = 0; p < kUnitPages; ++p) {
    const PageSpan* page = unit.pages[p];
    seen |= page != nullptr && sees(window, *page);
    unit.adjusted |= page == nullptr || needs_adjustment(window, *page);
  }
  if (seen) attend_unit<Math, R>(args, row, unit, b, ahead);
}

// One block, which begins with a page of the list, for all rows; the tiles of a unit stay in the
// first cache. Tiles that are converted are read before, as a stream.
template <typename Math>
void attend_block(const AttendArgs& args, const PageBlock& block, size_t page, const Tiles& tiles,
                  const Buffers& b) {
  const bool stored = args.layout->type == KvType::kBF16;
  for (size_t slot = 0; slot < block.slots; slot += kUnitPages) {
    const Unit unit = {block.pages + slot, tiles.k + slot, tiles.v + slot, false};
    page += kUnitPages - std::count(unit.pages, unit.pages + kUnitPages, nullptr);
    Ahead ahead(args, stored ? page : args.pages.size() + args.next.size());
    size_t row = 0;
    for (; row + kGroupRows <= args.rows; row += kGroupRows) {
      attend_group<Math, kGroupRows>(args, row, unit, b, ahead);
    }
    switch (args.rows - row) {
      case 3:
        attend_group<Math, 3>(args, row, unit, b, ahead);
        break;
      case 2:
        attend_group<Math, 2>(args, row, unit, b, ahead);
        break;
      case 1:
        attend_group<Math, 1>(args, row, unit, b, ahead);
        break;
    }
  }
}

template <typename Math>
void attend_pages(const AttendArgs& args, std::byte* scratch) {
  const Buffers b = carve(args, scratch);
  prepare_rows<Math>(args, b);
  PageBlock block;
  Tiles tiles;
  for (size_t page = 0; page < args.pages.size();) {
    const size_t next = next_block(args, page, kMaxBlockPages, block);
    prepare_block<Math>(args, block, b, tiles);
    attend_block<Math>(args, block, page, tiles, b);
    page = next;
  }
  for (size_t r = 0; r < args.rows; ++r) {
    finish_row(b.sums + r * b.dims, b.base[r], b.totals + r * kLanes, args.layout->head_dim,
               args.out_row(r), args.lse + r);
  }
}

}  // namespace

void attend_prefill_avx512(const AttendArgs& args, std::byte* scratch) {
  if (rounds_to_bf16(args.layout->type)) return attend_pages<Bf16Math>(args, scratch);
  attend_pages<FloatMath>(args, scratch);
}

}  // namespace reprise::kernels

// Decode with AVX-512 over pages of bf16 and q8_0: a page at a time, and of each page the tiles of
// all KV heads of the call, in the order in which they lie. Memory follows that as one stream.
// Tiles that are stored otherwise than they are multiplied become so in the first cache. Logits are
// in units of log2.
#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"
#include "kernels/attention_tiles.h"
#include "kernels/simd_avx512.h"
#include "kernels/softmax_avx512.h"
#include "kernels/tiles_ahead.h"

namespace reprise::kernels {
namespace {

constexpr size_t kGroupRows = 4, kVectorsAtOnce = 4, kLanes = 16, kPairs = kPageTokens / 2;

// One of the calls, with what it sums up.
struct Head {
  const AttendArgs* args;
  size_t dims;         // head_dim rounded up to whole vectors
  uint32_t* q;         // [rows, head_dim / 2] pairs of bf16
  float* sums;         // [rows, dims] weighted values, not normalised
  float* base;         // [rows] what logits are relative to
  float* totals;       // [rows, 16] weights summed lane by lane
  uint32_t* keys;      // a K tile that is rotated or converted at read
  uint32_t* values;    // a V tile that is converted at read
  RowWindow* windows;  // [groups of rows]
};

// A page of a head, and one that is read soon.
struct Tiles {
  const PageSpan* page;
  const uint32_t *k, *v;
  const std::byte *next_k, *next_v;
};

Head make_head(const AttendArgs& args, Arena& arena) {
  Head h;
  const size_t head_dim = args.layout->head_dim, rows = args.rows;
  h.args = &args;
  h.dims = (head_dim + kLanes - 1) / kLanes * kLanes;
  h.q = arena.take<uint32_t>(rows * head_dim / 2);
  h.sums = arena.take<float>(rows * h.dims);
  h.base = arena.take<float>(rows);
  h.totals = arena.take<float>(rows * kLanes);
  h.keys = arena.take<uint32_t>(kPairs * head_dim);
  h.values = arena.take<uint32_t>(kPairs * head_dim);
  h.windows = arena.take<RowWindow>((rows + kGroupRows - 1) / kGroupRows);
  for (size_t r = 0; r < rows; ++r) {
    scale_row<true>(args.q + r * args.q_stride, head_dim, args.scale, h.q + r * head_dim / 2);
    clear_row(h.sums + r * h.dims, h.dims, h.base + r, h.totals + r * kLanes);
  }
  for (size_t row = 0; row < rows; row += kGroupRows) {
    const size_t left = rows - row;
    h.windows[row / kGroupRows] = row_window(args, row, left < kGroupRows ? left : kGroupRows);
  }
  return h;
}

// One line of kFetchEvery, into the second cache: the stream that it continues brings the others.
// Fetches of all lines into the first one stand in the stream's way, and a Zen 4 reads at two
// thirds of its speed.
constexpr size_t kFetchEvery = 4;
[[gnu::always_inline]] inline void fetch_ahead(const std::byte* at) { fetch_lines<1, 2>(at); }

// logits[r] of the page's tokens; even and odd pairs of dims in sums of their own.
template <int R>
[[gnu::always_inline]] inline void score(const uint32_t* q, size_t steps, const Tiles& tiles,
                                         __m512 (&logits)[R]) {
  __m512 odd[R];
  for (int r = 0; r < R; ++r) logits[r] = odd[r] = _mm512_setzero_ps();
  const std::byte* next = tiles.next_k;
  size_t step = 0;
#pragma GCC unroll 4
  for (; step + 1 < steps; step += 2, next += 2 * kLine) {
    const __m512i first = _mm512_loadu_si512(tiles.k + step * kLanes);
    const __m512i second = _mm512_loadu_si512(tiles.k + (step + 1) * kLanes);
    if (step % kFetchEvery == 0) fetch_ahead(next);
    for (int r = 0; r < R; ++r) {
      const uint32_t* of_row = q + static_cast<size_t>(r) * steps + step;
      logits[r] = add_bf16_products(logits[r], broadcast(of_row), first);
      odd[r] = add_bf16_products(odd[r], broadcast(of_row + 1), second);
    }
  }
  if (step < steps) {
    const __m512i last = _mm512_loadu_si512(tiles.k + step * kLanes);
    for (int r = 0; r < R; ++r) {
      const uint32_t* of_row = q + static_cast<size_t>(r) * steps + step;
      logits[r] = add_bf16_products(logits[r], broadcast(of_row), last);
    }
  }
  for (int r = 0; r < R; ++r) logits[r] = _mm512_add_ps(logits[r], odd[r]);
}

// Turns the logits of one row into weights [8 pairs of tokens].
inline void weigh(const Head& h, size_t row, const PageSpan& page, bool adjusted, __m512 logits,
                  uint32_t* weights) {
  const AttendArgs& args = *h.args;
  if (adjusted) logits = adjust_logits(args, row, &page, logits);
  if (args.logits != nullptr) keep_logits(args, row, &page, logits);
  float* totals = h.totals + row * kLanes;
  move_base(logits, h.base + row, totals, h.sums + row * h.dims, h.dims);
  const __m512 weight = exp2_512(_mm512_sub_ps(logits, _mm512_set1_ps(h.base[row])));
  _mm512_storeu_ps(totals, _mm512_add_ps(_mm512_loadu_ps(totals), weight));
  const __m256bh packed = _mm512_cvtneps_pbh(weight);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights), (__m256i)packed);
}

// sums[r][dim..] += weights x values, of R rows and N vectors of dims.
template <int R, int N>
[[gnu::always_inline]] inline void sum_values(const uint32_t* weights, const Tiles& tiles,
                                              size_t head_dim, size_t dim, float* sums,
                                              size_t stride) {
  const __mmask16 last = first_lanes(static_cast<unsigned>(head_dim - dim - (N - 1) * kLanes));
  __m512 acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = _mm512_loadu_ps(sums + r * stride + dim + n * kLanes);
  }
  const uint32_t* v = tiles.v + dim;
  const std::byte* next = tiles.next_v + dim * sizeof(uint32_t);
#pragma GCC unroll 2
  for (size_t pair = 0; pair < kPairs; ++pair, v += head_dim, next += head_dim * sizeof(uint32_t)) {
    __m512i values[N];
    for (int n = 0; n < N; ++n) {
      values[n] = n + 1 < N ? _mm512_loadu_si512(v + n * kLanes)
                            : _mm512_maskz_loadu_epi32(last, v + n * kLanes);
    }
    fetch_ahead(next);
    for (int r = 0; r < R; ++r) {
      const __m512i weight = broadcast(weights + r * kPairs + pair);
      for (int n = 0; n < N; ++n) acc[r][n] = add_bf16_products(acc[r][n], weight, values[n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) _mm512_storeu_ps(sums + r * stride + dim + n * kLanes, acc[r][n]);
  }
}

// One page for R rows, if they read any of it. kDim: head_dim where it is known to the compiler,
// which then unrolls, else 0.
template <int R, size_t kDim>
void attend_group(const Head& h, size_t row, const Tiles& tiles) {
  const RowWindow& window = h.windows[row / kGroupRows];
  if (!sees(window, *tiles.page)) return;
  const bool adjusted = h.args->soft_cap > 0.0f || needs_adjustment(window, *tiles.page);
  const size_t head_dim = kDim != 0 ? kDim : h.args->layout->head_dim, steps = head_dim / 2;
  const size_t dims = kDim != 0 ? kDim : h.dims;
  __m512 logits[R];
  score<R>(h.q + row * steps, steps, tiles, logits);
  alignas(64) uint32_t weights[R * kPairs];
  for (int r = 0; r < R; ++r) {
    const size_t own = row + static_cast<size_t>(r);
    weigh(h, own, *tiles.page, adjusted, logits[r], weights + r * kPairs);
  }
  float* sums = h.sums + row * dims;
  size_t dim = 0;
  for (; dim + kVectorsAtOnce * kLanes <= dims; dim += kVectorsAtOnce * kLanes) {
    sum_values<R, kVectorsAtOnce>(weights, tiles, head_dim, dim, sums, dims);
  }
  for (; dim < dims; dim += kLanes) {
    sum_values<R, 1>(weights, tiles, head_dim, dim, sums, dims);
  }
}

template <int R>
void attend_group(const Head& h, size_t row, const Tiles& tiles) {
  if (h.args->layout->head_dim == 64) return attend_group<R, 64>(h, row, tiles);
  if (h.args->layout->head_dim == 128) return attend_group<R, 128>(h, row, tiles);
  attend_group<R, 0>(h, row, tiles);
}

void fetch_tile(const std::byte* tile, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kFetchEvery * kLine) fetch_ahead(tile + at);
}

void attend_page(const Head& h, const PageSpan& page, const PageSpan& next) {
  Tiles tiles = {&page, reinterpret_cast<const uint32_t*>(page.k),
                 reinterpret_cast<const uint32_t*>(page.v), next.k, next.v};
  const KvLayout& layout = *h.args->layout;
  const bool stored = layout.type == KvType::kBF16;
  if (!stored || page.cos_sin != nullptr) {
    bf16_k_tile_avx512(*h.args, page, h.keys);
    tiles.k = h.keys;
  }
  if (!stored) {
    fetch_tile(next.k, layout.tile_bytes());
    fetch_tile(next.v, layout.tile_bytes());
    bf16_v_tile_avx512(*h.args, page, h.values, layout.head_dim);
    tiles.v = h.values;
    tiles.next_k = page.k;  // what is fetched already
    tiles.next_v = page.v;
  }
  size_t row = 0;
  for (; row + kGroupRows <= h.args->rows; row += kGroupRows) {
    attend_group<kGroupRows>(h, row, tiles);
  }
  switch (h.args->rows - row) {
    case 3:
      return attend_group<3>(h, row, tiles);
    case 2:
      return attend_group<2>(h, row, tiles);
    case 1:
      return attend_group<1>(h, row, tiles);
  }
}

// What is read some pages of a head later: memory takes longer than one. The last one at the end.
const PageSpan& page_ahead(std::span<const AttendArgs> heads, size_t page, size_t head) {
  constexpr size_t kAhead = 4;
  head += kAhead;
  for (; head >= heads.size(); head -= heads.size()) ++page;
  const AttendArgs& args = heads[head];
  if (page < args.pages.size()) return args.pages[page];
  page -= args.pages.size();
  return page < args.next.size() ? args.next[page] : args.pages[args.pages.size() - 1];
}

}  // namespace

void attend_decode_avx512(std::span<const AttendArgs> heads, std::byte* scratch) {
  Arena arena(scratch);
  Head* all = arena.take<Head>(heads.size());
  for (size_t i = 0; i < heads.size(); ++i) all[i] = make_head(heads[i], arena);
  for (size_t page = 0; page < heads[0].pages.size(); ++page) {
    for (size_t i = 0; i < heads.size(); ++i) {
      attend_page(all[i], heads[i].pages[page], page_ahead(heads, page, i));
    }
  }
  for (size_t i = 0; i < heads.size(); ++i) {
    const Head& h = all[i];
    const AttendArgs& args = *h.args;
    for (size_t r = 0; r < args.rows; ++r) {
      finish_row(h.sums + r * h.dims, h.base[r], h.totals + r * kLanes, args.layout->head_dim,
                 args.out + r * args.out_stride, args.lse + r);
    }
  }
}

}  // namespace reprise::kernels

// Decode, whatever the instruction set and whatever the pages hold: a page at a time, and of each
// page the tiles of all KV heads of the call, in the order in which they lie. Memory follows that
// as one stream. Logits are in units of log2.
#pragma once

#include "kernels/arena.h"
#include "kernels/attention_isa.h"
#include "kernels/attention_rows.h"

namespace reprise::kernels {
namespace {  // each source compiles its own, for its instruction set

constexpr size_t kGroupRows = 4, kLanes = 16, kPairs = kPageTokens / 2;

// What rows from one on read of a page.
struct PageOfRows {
  const AttendArgs& args;
  size_t row;
  const PageSpan& page;
  bool adjusted;  // their logits are capped, biased or masked
};

// One of the calls, with what it sums up. Math says what a type of pages multiplies:
//   Softmax            of an instruction set: Logits, those of a row and a page; weigh() turns them
//                      into weights, clear() begins a row, finish() gives its result back
//   Query, kSums       rows of q as they are multiplied; floats summed per dim
//   take, load         memory for a Query; its row
//   keys               a K tile as it is multiplied
//   score, weigh, sum  logits of a group of rows, their weights, and the values they weigh; score
//                      and sum fetch what is Ahead
//   finish             the sums of a row, one per dim
template <typename Math>
struct Head {
  const AttendArgs* args;
  RowSums sums;
  RowWindow* windows;  // [groups of rows]
  typename Math::Query query;
};

// What Maths that multiply floats with tiles as they are stored have in common.
struct FloatRows {
  struct Query {
    float* rows;  // [rows, head_dim]
  };
  static Query take(const AttendArgs& args, Arena& arena) {
    return {arena.take<float>(args.rows * args.layout->head_dim)};
  }
  static const std::byte* keys(const AttendArgs&, const Query&, const PageSpan& page) {
    return page.k;
  }
};

template <typename Math>
Head<Math> make_head(const AttendArgs& args, Arena& arena) {
  Head<Math> h;
  const size_t head_dim = args.layout->head_dim, rows = args.rows;
  h.args = &args;
  h.sums.width = (head_dim + kLanes - 1) / kLanes * kLanes * Math::kSums;
  h.sums.values = arena.take<float>(rows * h.sums.width);
  h.sums.base = arena.take<float>(rows);
  h.sums.totals = arena.take<float>(rows * kLanes);
  h.windows = arena.take<RowWindow>((rows + kGroupRows - 1) / kGroupRows);
  h.query = Math::take(args, arena);
  for (size_t r = 0; r < rows; ++r) {
    Math::load(args, r, h.query);
    Math::Softmax::clear(h.sums.from(r));
  }
  for (size_t row = 0; row < rows; row += kGroupRows) {
    const size_t left = rows - row;
    h.windows[row / kGroupRows] = row_window(args, row, left < kGroupRows ? left : kGroupRows);
  }
  return h;
}

// The tiles of a page that is read later, fetched line by line between the steps of one that is
// read now: many lines at once stop a core, which waits for a few at a time.
// All of them, also of a stream: one that memory finds by itself comes at two thirds of the speed.
// Near enough that the first cache holds them: the second alone gives 0.75 to 0.9 of the speed.
struct Ahead {
  enum Tile { kKeys, kValues };
  const std::byte* tiles[2];
  bool fetches;

  // Lines that begin in step number `step`, of `size` bytes.
  [[gnu::always_inline]] void fetch(Tile tile, size_t step, size_t size) const {
    constexpr size_t kLine = 64;
    if (!fetches) return;
    for (size_t at = (step * size + kLine - 1) / kLine * kLine; at < (step + 1) * size; at += kLine)
      __builtin_prefetch(tiles[tile] + at);
  }
};

// One page for R rows, if they read any of it. kDim: head_dim where it is known to the compiler,
// which then unrolls, else 0.
template <typename Math, int R, size_t kDim>
void attend_group(const Head<Math>& h, size_t row, const PageSpan& page, const std::byte* keys,
                  const Ahead& ahead) {
  const RowWindow& window = h.windows[row / kGroupRows];
  if (!sees(window, page)) return;
  const bool adjusted = h.args->soft_cap > 0.0f || needs_adjustment(window, page);
  const size_t head_dim = kDim != 0 ? kDim : h.args->layout->head_dim;
  typename Math::Softmax::Logits logits[R];
  Math::template score<R>(*h.args, h.query, row, head_dim, page, keys, ahead, logits);
  typename Math::template Weights<R> weights;
  const RowSums sums = h.sums.from(row);
  Math::Softmax::template weigh<R>({*h.args, row, page, adjusted}, sums, logits);
  for (int r = 0; r < R; ++r) Math::weigh(weights, r, logits[r]);
  const size_t width = kDim != 0 ? kDim * Math::kSums : sums.width;
  Math::template sum<R>(weights, head_dim, page, ahead, sums.values, width);
}

template <typename Math, int R>
void attend_group(const Head<Math>& h, size_t row, const PageSpan& page, const std::byte* keys,
                  const Ahead& ahead) {
  switch (h.args->layout->head_dim) {
    case 64:
      return attend_group<Math, R, 64>(h, row, page, keys, ahead);
    case 128:
      return attend_group<Math, R, 128>(h, row, page, keys, ahead);
    default:
      return attend_group<Math, R, 0>(h, row, page, keys, ahead);
  }
}

template <typename Math>
void attend_page(const Head<Math>& h, const PageSpan& page, const PageSpan& soon) {
  Ahead ahead{{soon.k, soon.v}, true};
  const std::byte* keys = Math::keys(*h.args, h.query, page);
  size_t row = 0;
  for (; row + kGroupRows <= h.args->rows; row += kGroupRows) {
    attend_group<Math, kGroupRows>(h, row, page, keys, ahead);
    ahead.fetches = false;
  }
  switch (h.args->rows - row) {
    case 3:
      return attend_group<Math, 3>(h, row, page, keys, ahead);
    case 2:
      return attend_group<Math, 2>(h, row, page, keys, ahead);
    case 1:
      return attend_group<Math, 1>(h, row, page, keys, ahead);
  }
}

// Pages of a head from one that is fetched to the one that is read: at least 8 KB.
inline size_t pages_ahead(const KvLayout& layout) {
  constexpr size_t kBytes = 8192;
  const size_t page = 2 * layout.tile_bytes();
  return (kBytes + page - 1) / page;
}

// What is read so many pages of a head later. The last one at the end.
inline const PageSpan& page_ahead(std::span<const AttendArgs> heads, size_t page, size_t head,
                                  size_t ahead) {
  head += ahead;
  for (; head >= heads.size(); head -= heads.size()) ++page;
  const AttendArgs& args = heads[head];
  if (page < args.pages.size()) return args.pages[page];
  page -= args.pages.size();
  return page < args.next.size() ? args.next[page] : args.pages[args.pages.size() - 1];
}

template <typename Math>
void attend_decode(std::span<const AttendArgs> heads, std::byte* scratch) {
  Arena arena(scratch);
  auto* all = arena.take<Head<Math>>(heads.size());
  for (size_t i = 0; i < heads.size(); ++i) all[i] = make_head<Math>(heads[i], arena);
  const size_t ahead = pages_ahead(*heads[0].layout);
  for (size_t page = 0; page < heads[0].pages.size(); ++page) {
    for (size_t i = 0; i < heads.size(); ++i) {
      const PageSpan& soon = page_ahead(heads, page, i, ahead);
      attend_page(all[i], heads[i].pages[page], soon);
    }
  }
  for (size_t i = 0; i < heads.size(); ++i) {
    const Head<Math>& h = all[i];
    const AttendArgs& args = *h.args;
    for (size_t r = 0; r < args.rows; ++r) {
      const RowSums sums = h.sums.from(r);
      Math::finish(args.layout->head_dim, sums.values);
      Math::Softmax::finish(sums, args.layout->head_dim, args.out_row(r), args.lse + r);
    }
  }
}

}  // namespace
}  // namespace reprise::kernels

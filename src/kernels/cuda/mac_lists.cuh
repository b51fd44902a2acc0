// Which pages a row of MAC-Attention reads, in two lists of each pair of a row and a KV head. Fresh
// ones hold the first keys and the band: their result is not stored. Captured ones hold the keys
// between, from the last page down, as far as no result is reused for them. The part of that list
// that a match cannot spare is near: with the fresh list, it is known before what matches. Both are
// cut into chunks of at most a page for every warp of a block, equally many for all pairs, of which
// some may be empty. Where chunks have a page for every warp, a block makes one piece of those that
// it reads of a list. What is left of the captured lists is far: pages of all pairs lie end to end.
// Where lists name some of the keys (sparse), heads without a match read what those name between
// sinks and band, near keys too, as far lists.
#pragma once

#include "kernels/cuda/mac_params.cuh"

namespace reprise::kernels::cuda {

namespace mac {

// Keys [0, sink) and [cut, position] of a row are fresh, [sink, cut) captured.
struct Row {
  uint32_t ring;
  int32_t position, sink, cut;
  uint32_t sink_pages, tail;  // pages [0, sink_pages) and from tail on are fresh
  uint32_t fresh, near;       // pages of the lists
  uint32_t top, captured;     // captured pages end at page top

  __device__ void find(const Params& p, int32_t at, uint32_t number) {
    ring = number;
    position = at;
    const int32_t visible = at + 1;
    sink = min(p.rules.sink, visible);
    cut = min(visible, max(sink, p.cut(at)));
    sink_pages = pages_to(sink);
    tail = max(sink_pages, page_of(cut));
    const uint32_t end = pages_to(visible);
    fresh = sink_pages + (end > tail ? end - tail : 0);
    top = pages_to(cut);
    captured = cut > sink ? top - page_of(sink) : 0;
    const int32_t farthest = max(sink, p.cut(at - p.rules.max_gap));  // where a match's keys end
    near = captured > 0 ? top - min(top, page_of(farthest)) : 0;
  }

  __device__ bool has_ring() const { return ring != kNoRing; }
  __device__ bool may_reuse(const Params& p) const {
    return has_ring() && position >= p.rules.min_context;
  }

  // Whether it leaves an entry in its ring.
  __device__ bool stores(const Params& p) const {
    return has_ring() && position >= p.first_position() &&
           position + static_cast<int32_t>(p.ring.window) >= p.rules.min_context;
  }

  __device__ uint32_t fresh_page(uint32_t index) const {
    return index < sink_pages ? index : tail + index - sink_pages;
  }
  __device__ uint32_t captured_page(uint32_t index) const { return top - 1 - index; }
  // Captured pages that hold keys from begin on.
  __device__ uint32_t captured_from(int32_t begin) const {
    return captured > 0 ? top - min(top, page_of(begin)) : 0;
  }

  __device__ static uint32_t page_of(int32_t key) {
    return static_cast<uint32_t>(key) / kPageTokens;
  }
  __device__ static uint32_t pages_to(int32_t key) {
    return (static_cast<uint32_t>(key) + kPageTokens - 1) / kPageTokens;
  }
};

// Bits of the tokens of a page that are keys [begin, end).
__device__ inline uint32_t tokens_of(uint32_t page, int32_t begin, int32_t end) {
  const auto first = static_cast<int32_t>(page * kPageTokens);
  const int32_t from = min(max(begin - first, 0), 16), to = min(max(end - first, 0), 16);
  return ((1u << to) - 1) & ~((1u << from) - 1);
}

// What a query head reuses: the result of a position, -1: none. -2 - position: of another head of
// its group none was found.
struct Match {
  int32_t position;
  float distance2;
};

// In shared memory.
struct Lists {
  uint32_t* far;       // [pairs + 1] first pages of far lists
  Row* rows;           // [batch]
  uint32_t* captured;  // [pairs] see captured_pages(); kMissed: a head without a match
  // [pairs] first and last << 16 of the blocks that compared with the ring, and once that is
  // decided, of those that read the far list.
  uint32_t* blocks;
  uint32_t* compares;  // [pairs] whether it compares
  // [pairs] each, where lists are sparse: the entries that a pair reads, [listed, listed_end).
  uint32_t *listed, *listed_end;
  Match* matches;  // [pairs, group]

  static size_t bytes(const Params& p) {
    const size_t pairs = p.pairs, words = p.sparse ? 6 : 4;
    return pairs / p.n_kv_head * sizeof(Row) + (words * pairs + 1) * 4 +
           pairs * p.group * sizeof(Match);
  }
  __device__ Lists(const Params& p, void* memory) {
    far = static_cast<uint32_t*>(memory);
    captured = far + p.pairs + 1;
    blocks = captured + p.pairs;
    compares = blocks + p.pairs;
    listed = compares + p.pairs;
    listed_end = listed + p.pairs;
    rows = reinterpret_cast<Row*>(listed + (p.sparse ? 2 * p.pairs : 0));
    matches = reinterpret_cast<Match*>(rows + p.row_of(p.pairs));
  }
  static constexpr uint32_t kMissed = 1u << 31;

  __device__ const Row& row(const Params& p, uint32_t pair) const { return rows[p.row_of(pair)]; }
  // The entries of a position in a pair's ring.
  __device__ MacEntry* entries(const Params& p, uint32_t pair, int32_t position) const {
    return p.ring.entries + slot(p, pair, position) * p.group;
  }
  // The same in units of [group].
  __device__ size_t slot(const Params& p, uint32_t pair, int32_t position) const {
    const auto at = static_cast<uint32_t>(position), window = p.ring.window;
    return p.ring_of(row(p, pair).ring, pair) * window + at - p.by_window.quotient(at) * window;
  }
  __device__ MacCounters* counters(const Params& p, uint32_t pair) const {
    return p.ring.counters + size_t{row(p, pair).ring} * p.ring.layers;
  }
  __device__ MacGuardState* guard(const Params& p, uint32_t pair) const {
    return p.ring.guards + p.ring_of(row(p, pair).ring, pair);
  }
  // That are read, but for far lists that are sparse.
  __device__ uint32_t captured_pages(uint32_t pair) const { return captured[pair] & ~kMissed; }
  __device__ uint32_t far_pages(const Params& p, uint32_t pair) const {
    if (p.sparse) return listed_end[pair] - listed[pair];
    const uint32_t near = row(p, pair).near, all = captured_pages(pair);
    return all > near ? all - near : 0;
  }
  // The entry of a sparse list that a far page is.
  __device__ size_t entry(const Params& p, uint32_t pair, uint32_t far_page) const {
    return p.list(pair) * p.lists.capacity + listed[pair] + far_page;
  }
  // Where the keys begin that a head of a pair reads between sinks and band.
  __device__ int32_t begin(const Params& p, uint32_t pair, uint32_t head) const {
    const int32_t position = matches[pair * p.group + head].position;
    return position >= 0 ? p.cut(position) : row(p, pair).sink;
  }
  // The same of the pages of near or of far lists.
  __device__ int32_t begin(const Params& p, uint32_t pair, uint32_t head, bool far) const {
    const bool missed = matches[pair * p.group + head].position < 0;
    return p.sparse && missed != far ? row(p, pair).cut : begin(p, pair, head);
  }
};

// Pages of a chunk in the list that it is cut from.
struct Chunk {
  uint32_t pair;
  bool fresh;
  uint32_t begin, end;

  __device__ static Chunk of(const Params& p, const Lists& lists, uint32_t number) {
    Chunk chunk;
    chunk.pair = p.by_chunks.quotient(number);
    uint32_t nth = number - chunk.pair * p.chunks;
    chunk.fresh = nth < p.fresh_chunks;
    if (!chunk.fresh) nth -= p.fresh_chunks;
    const Row& row = lists.row(p, chunk.pair);
    chunk.begin = nth * p.chunk_pages;
    chunk.end = min(chunk.begin + p.chunk_pages, chunk.fresh ? row.fresh : row.near);
    return chunk;
  }
};

// Of all rows of a launch. All threads.
__device__ inline void find_rows(const Params& p, const Lists& lists) {
  const uint32_t batch = p.row_of(p.pairs);
  for (uint32_t i = threadIdx.x; i < batch; i += blockDim.x) {
    const int32_t position = __ldcg(p.positions + i);
    lists.rows[i].find(p, max(position, -1), __ldcg(p.rings + i));
  }
  __syncthreads();
}

// Which blocks compare with which rings, and that nothing is known to be captured.
__device__ inline void find_compared(const Params& p, const Lists& lists) {
  for (uint32_t pair = threadIdx.x; pair < p.pairs; pair += blockDim.x) {
    const uint32_t first = pair * p.units, last = first + p.units - 1;
    lists.captured[pair] = 0;
    lists.blocks[pair] = p.searches.owner(first) | p.searches.owner(last) << 16;
  }
}

// The least candidate of a query head that one of the lanes of a warp which share it finds.
__device__ inline uint64_t least_candidate(const Params& p, const Lists& lists, uint32_t launch,
                                           uint32_t head, uint32_t lanes) {
  constexpr uint32_t kAtOnce = 4;  // loads in flight
  const uint32_t pair = p.by_group.quotient(head);
  const uint32_t first = lists.blocks[pair] & 0xffff, last = lists.blocks[pair] >> 16;
  uint64_t nearest = kNothing;
  for (uint32_t b = first + threadIdx.x % lanes; b <= last; b += kAtOnce * lanes) {
    uint2 found[kAtOnce];
    receive(launch, found, [&](uint32_t k) {
      const uint32_t block = b + k * lanes;
      const size_t row = size_t{pair} + block;
      return block <= last ? p.candidates + row * p.group + head - pair * p.group : nullptr;
    });
#pragma unroll
    for (const uint2& each : found) nearest = min(nearest, uint64_t{each.y} << 32 | each.x);
  }
  return nearest;
}

// All lanes of a warp.
__device__ inline uint64_t least_of_lanes(uint64_t nearest, uint32_t lanes) {
  for (uint32_t step = 1; step < lanes; step *= 2) {
    nearest = min(nearest, __shfl_xor_sync(~0u, nearest, step));
  }
  return nearest;
}

// Entries of the sparse list of a pair, from one of its ends, whose pages lie before the first key
// after sinks or after the band began. All lanes of a warp.
__device__ inline uint32_t count_outside(const Params& p, const Row& row, uint32_t pair,
                                         uint32_t entries, bool from_end) {
  const uint32_t* numbers = p.numbers + p.list(pair) * p.lists.capacity;
  uint32_t count = 0;
  for (;;) {
    const uint32_t i = count + threadIdx.x % 32;
    const uint32_t number = i < entries ? numbers[from_end ? entries - 1 - i : i] : 0;
    const bool outside = from_end ? number >= row.top : number < Row::page_of(row.sink);
    const uint32_t found = __ballot_sync(~0u, i < entries && outside);
    if (found != ~0u) return count + __popc(found);
    count += 32;
  }
}

// What pairs without a match read of their sparse lists. All threads; they all know afterwards.
__device__ inline void find_listed(const Params& p, const Lists& lists) {
  for (uint32_t pair = threadIdx.x / 32; pair < p.pairs; pair += blockDim.x / 32) {
    const Row& row = lists.row(p, pair);
    uint32_t begin = 0, end = 0;
    if (lists.captured[pair] >= Lists::kMissed && row.captured > 0) {
      const uint32_t entries = p.list_pages(pair);
      begin = count_outside(p, row, pair, entries, false);
      end = entries - count_outside(p, row, pair, entries, true);
    }
    if (threadIdx.x % 32 == 0) {
      lists.listed[pair] = begin;
      lists.listed_end[pair] = end;
    }
  }
  __syncthreads();
}

// Decides what is reused, from what blocks found; fills matches, and captured, which arrives as
// zeros. Whether any page beyond the near ones is read. found: whether there is anything, which
// blocks of the launch tell. All threads.
__device__ inline bool decide(const Params& p, const Lists& lists, bool found, uint32_t launch) {
  const uint32_t heads = p.pairs * p.group, lanes = heads * 8 <= 4 * blockDim.x ? 8 : 1;
  for (uint32_t i = threadIdx.x / lanes; i - threadIdx.x / lanes < heads; i += blockDim.x / lanes) {
    const uint32_t head = min(i, heads - 1), pair = p.by_group.quotient(head);
    const bool asks = found && i < heads;
    const uint64_t nearest =
        least_of_lanes(asks ? least_candidate(p, lists, launch, head, lanes) : kNothing, lanes);
    if (i >= heads || threadIdx.x % lanes != 0) continue;
    const Row& row = lists.row(p, pair);
    const bool reused = nearest != kNothing && !is_risky(nearest);
    const int32_t position = reused ? row.position - gap_of(nearest) : -1;
    lists.matches[head] = {position, distance2_of(nearest)};
    // Beside heads that match, those that do not add nothing to near lists that are sparse.
    const uint32_t missed = p.sparse ? (p.rules.split ? row.near : 0) : row.captured;
    const uint32_t pages = reused ? row.captured_from(p.cut(position)) : Lists::kMissed | missed;
    atomicMax(&lists.captured[pair], pages);
  }
  __syncthreads();
  if (p.sparse) find_listed(p, lists);
  bool far = false;
  for (uint32_t head = threadIdx.x; head < heads; head += blockDim.x) {
    const uint32_t pair = p.by_group.quotient(head);
    int32_t& position = lists.matches[head].position;
    const bool missed = lists.captured[pair] >= Lists::kMissed;
    if (missed && !p.rules.split && position >= 0) position = -2 - position;
    far = far || lists.far_pages(p, pair) > 0;
  }
  return __syncthreads_or(far ? 1 : 0) != 0;
}

}  // namespace mac

}  // namespace reprise::kernels::cuda

// One block per sequence: winners by radix, in order of position by a bitonic sort, then runs of
// neighbouring keys and what is made of them.
#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/key_spans.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_evidence.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 512, kWarps = kThreads / 32, kBins = 256;
constexpr uint32_t kMaxRuns = kMaxSpans + 2;

// A key's votes, its best score and key + 1, most significant first.
struct Rank {
  uint32_t word[3];

  __device__ uint32_t digit(uint32_t i) const { return word[i / 4] >> (24 - i % 4 * 8) & 255; }
  __device__ bool is_below(const Rank& other) const {
    if (word[0] != other.word[0]) return word[0] < other.word[0];
    if (word[1] != other.word[1]) return word[1] < other.word[1];
    return word[2] < other.word[2];
  }
};

struct Shared {
  uint32_t bins[kBins], warps[kWarps];
  uint32_t needed, digit, winners, most_votes;
  bool done;
  Rank candidates[kThreads];
  int32_t keys[kMaxSpans];
  int32_t begin[kMaxRuns], end[kMaxRuns];      // of runs
  uint32_t tokens[kMaxRuns], pages[kMaxRuns];  // before each run
};

// What the block knows of its sequence.
struct Sequence {
  uint32_t index;
  int32_t length;
  KeyRange32 middle;
  int32_t recent;                         // the last keys begin here
  uint32_t spans;                         // most that votes win
  const RowAgreement* regions = nullptr;  // null: there are none

  __device__ Sequence(const KeySpansArgs& a, uint32_t at)
      : index(at),
        length(a.positions[at] + 1),
        middle(middle_of(a.middle, a.positions[at], a.rows)),
        recent(middle.end),
        spans(a.spans) {
    regions = a.agreement != nullptr ? a.agreement[at] : nullptr;
    const bool gated = a.evidence.states != nullptr && !is_open(a.evidence, at);
    const bool agrees = regions != nullptr && regions->regions > 0;
    if (agrees) spans = a.agreed_spans;
    if (!gated && (regions == nullptr || agrees)) return;
    recent = max(middle.begin, min(middle.end, length - a.wide));
  }
  __device__ bool reads_all() const { return middle.begin >= middle.end; }
};

__device__ Rank rank_of(const VoteTables& votes, size_t slot) {
  return {{votes.votes[slot], votes.best[slot], votes.keys[slot]}};
}

// Of threads up to this one; total: of all. All threads call.
__device__ uint32_t scan_block(Shared& s, uint32_t value, uint32_t* total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t left = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += left;
  }
  __syncthreads();
  if (lane == 31) s.warps[warp] = value;
  __syncthreads();
  *total = 0;
  for (uint32_t w = 0; w < kWarps; ++w) {
    if (w < warp) value += s.warps[w];
    *total += s.warps[w];
  }
  return value;
}

// Counts digit i of candidates that agree with least in the digits before.
__device__ void count_digits(const VoteTables& votes, size_t at, uint32_t count, const Rank& least,
                             uint32_t i, Shared& s) {
  for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) s.bins[bin] = 0;
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < count; c += kThreads) {
    const Rank rank = rank_of(votes, at + votes.used[at + c]);
    bool agrees = true;
    for (uint32_t j = 0; j < i; ++j) agrees = agrees && rank.digit(j) == least.digit(j);
    if (agrees) atomicAdd(&s.bins[rank.digit(i)], 1u);
  }
  __syncthreads();
}

// The digit in whose bin the last winner is.
__device__ void choose_digit(Shared& s) {
  if (threadIdx.x >= 32) return;
  uint32_t own[8], sum = 0;  // bins from the largest on
  for (uint32_t j = 0; j < 8; ++j) sum += own[j] = s.bins[kBins - 1 - threadIdx.x * 8 - j];
  uint32_t until = sum;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t left = __shfl_up_sync(~0u, until, step);
    if (threadIdx.x >= step) until += left;
  }
  uint32_t before = until - sum;
  const uint32_t needed = s.needed;
  __syncwarp();
  if (before >= needed || until < needed) return;
  for (uint32_t j = 0; j < 8; ++j) {
    if (before + own[j] < needed) {
      before += own[j];
      continue;
    }
    s.digit = kBins - 1 - threadIdx.x * 8 - j;
    s.done = before + own[j] == needed;
    s.needed = needed - before;
    return;
  }
}

// The first digit in which candidates differ in votes.
__device__ uint32_t first_digit(const VoteTables& votes, size_t at, uint32_t count, Shared& s) {
  uint32_t most = 0;
  for (uint32_t c = threadIdx.x; c < count; c += kThreads) {
    most = max(most, votes.votes[at + votes.used[at + c]]);
  }
  if (threadIdx.x == 0) s.most_votes = 0;
  __syncthreads();
  atomicMax(&s.most_votes, most);
  __syncthreads();
  return static_cast<uint32_t>(__clz(static_cast<int>(s.most_votes))) / 8;
}

// The least rank that wins.
__device__ Rank least_winner(const VoteTables& votes, size_t at, uint32_t count, uint32_t spans,
                             Shared& s) {
  Rank least = {};
  if (threadIdx.x == 0) s.needed = spans;
  for (uint32_t i = first_digit(votes, at, count, s); i < 12; ++i) {
    count_digits(votes, at, count, least, i, s);
    choose_digit(s);
    __syncthreads();
    least.word[i / 4] |= s.digit << (24 - i % 4 * 8);
    if (s.done) break;
  }
  return least;
}

// Candidates of higher rank than this thread's own, of as many as there are threads at most.
__device__ uint32_t count_before(const Rank& own, uint32_t count, Shared& s) {
  s.candidates[threadIdx.x] = own;
  __syncthreads();
  uint32_t before = 0;
  for (uint32_t c = 0; c < count; ++c) before += own.is_below(s.candidates[c]) ? 1 : 0;
  return before;
}

// Winners in s.keys, in any order; empties the table.
__device__ void take_winners(const VoteTables& votes, const Sequence& sequence, Shared& s) {
  const size_t at = size_t{sequence.index} * votes.slots;
  const uint32_t count = votes.count[sequence.index], spans = sequence.spans;
  if (threadIdx.x == 0) s.winners = 0;
  __syncthreads();
  Rank least = {};
  bool wins = count <= spans;  // all of them
  if (!wins && count <= kThreads) {
    Rank own = {};
    if (threadIdx.x < count) own = rank_of(votes, at + votes.used[at + threadIdx.x]);
    wins = count_before(own, count, s) < spans;
  } else if (!wins) {
    least = least_winner(votes, at, count, spans, s);
    wins = spans > 0;
  }
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < count; c += kThreads) {
    const size_t slot = at + votes.used[at + c];
    const Rank rank = rank_of(votes, slot);
    if (wins && !rank.is_below(least))
      s.keys[atomicAdd(&s.winners, 1u)] = static_cast<int32_t>(rank.word[2] - 1);
    votes.keys[slot] = votes.votes[slot] = votes.best[slot] = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) votes.count[sequence.index] = 0;
}

// The middles of regions that rows before agreed on.
__device__ void add_regions(const RowAgreement* regions, Shared& s) {
  __syncthreads();
  if (threadIdx.x == 0 && regions != nullptr) {
    for (uint32_t i = 0; i < regions->regions; ++i) s.keys[s.winners++] = regions->middle(i);
  }
  __syncthreads();
}

// Ascending.
__device__ void sort_keys(Shared& s) {
  uint32_t size = 1;
  while (size < s.winners) size *= 2;
  for (uint32_t i = s.winners + threadIdx.x; i < size; i += kThreads) s.keys[i] = INT32_MAX;
  for (uint32_t block = 2; block <= size; block *= 2) {
    for (uint32_t step = block / 2; step > 0; step /= 2) {
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < size / 2; i += kThreads) {
        const uint32_t low = i / step * 2 * step + i % step, high = low + step;
        const bool up = (low & block) == 0;
        const int32_t a = s.keys[low], b = s.keys[high];
        if ((a > b) != up) continue;
        s.keys[low] = b;
        s.keys[high] = a;
      }
    }
  }
  __syncthreads();
}

// Of pieces that are read, ascending: the first keys, the winners' spans, the last keys. Each
// begins at or after the end of the one before it.
__device__ KeyRange32 piece(const KeySpansArgs& a, const Sequence& sequence, const Shared& s,
                            uint32_t i) {
  if (sequence.reads_all()) return {0, sequence.length};
  const KeyRange32 middle = sequence.middle;
  if (i == 0) return {0, middle.begin};
  const int32_t recent = sequence.recent;
  if (i > s.winners) return {recent, sequence.length};
  const auto span = static_cast<int32_t>(a.span);
  const auto end_of = [&](uint32_t j) { return min(recent, s.keys[j] - span / 2 + span); };
  int32_t begin = min(recent, max(middle.begin, s.keys[i - 1] - span / 2));
  if (i > 1) begin = max(begin, end_of(i - 2));
  return {begin, end_of(i - 1)};
}

// Pieces that touch are one run. Returns how many there are.
__device__ uint32_t make_runs(const KeySpansArgs& a, const Sequence& sequence, Shared& s) {
  const uint32_t pieces = sequence.reads_all() ? 1 : s.winners + 2;
  uint32_t runs = 0;
  for (uint32_t start = 0; start < pieces; start += kThreads) {
    const uint32_t i = start + threadIdx.x;
    const bool there = i < pieces;
    const KeyRange32 own = there ? piece(a, sequence, s, i) : KeyRange32{};
    const bool heads = there && (i == 0 || own.begin > piece(a, sequence, s, i - 1).end);
    const bool ends = there && (i + 1 == pieces || piece(a, sequence, s, i + 1).begin > own.end);
    uint32_t total = 0;
    const uint32_t run = runs + scan_block(s, heads ? 1 : 0, &total) - 1;
    if (heads) s.begin[run] = own.begin;
    if (ends) s.end[run] = own.end;
    runs += total;
  }
  __syncthreads();
  return runs;
}

struct Totals {
  uint32_t tokens = 0, pages = 0;
};

__device__ Totals number_runs(uint32_t runs, Shared& s) {
  Totals totals;
  for (uint32_t start = 0; start < runs; start += kThreads) {
    const uint32_t i = start + threadIdx.x;
    uint32_t tokens = 0, pages = 0;
    if (i < runs && s.end[i] > s.begin[i]) {
      const auto begin = static_cast<uint32_t>(s.begin[i]), end = static_cast<uint32_t>(s.end[i]);
      tokens = end - begin;
      pages = (end - 1) / kPageTokens - begin / kPageTokens + 1;
    }
    uint32_t all_tokens = 0, all_pages = 0;
    const uint32_t tokens_until = scan_block(s, tokens, &all_tokens);
    const uint32_t pages_until = scan_block(s, pages, &all_pages);
    if (i < runs) {
      s.tokens[i] = totals.tokens + tokens_until - tokens;
      s.pages[i] = totals.pages + pages_until - pages;
    }
    totals.tokens += all_tokens;
    totals.pages += all_pages;
  }
  __syncthreads();
  return totals;
}

// The last run before which there are at most i.
__device__ uint32_t run_of(const uint32_t* before, uint32_t runs, uint32_t i) {
  uint32_t low = 0, high = runs;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (before[middle] <= i ? low : high) = middle;
  }
  return low;
}

__device__ void write_lists(const KeySpansArgs& a, uint32_t sequence, uint32_t runs, uint32_t count,
                            const Shared& s) {
  const uint32_t* table = a.pages + size_t{sequence} * a.capacity;
  const size_t at = size_t{sequence} * a.list_capacity;
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t run = run_of(s.pages, runs, i);
    const auto begin = static_cast<uint32_t>(s.begin[run]), end = static_cast<uint32_t>(s.end[run]);
    const uint32_t page = begin / kPageTokens + i - s.pages[run], first = page * kPageTokens;
    const uint32_t from = max(begin, first) - first, to = min(end, first + kPageTokens) - first;
    a.list_pages[at + i] = table[page];
    a.list_slots[at + i] = static_cast<uint16_t>((1u << to) - (1u << from));
    // Token 0 of the page stands as far before the run's begin as it does in the text.
    a.list_angles[at + i] = s.tokens[run] + first + (kPageTokens - 1) - begin;
  }
  if (threadIdx.x == 0) a.list_keys[sequence] = static_cast<int32_t>(count * kPageTokens);
}

__global__ __launch_bounds__(kThreads) void spans_kernel(const __grid_constant__ KeySpansArgs a) {
  __shared__ Shared s;
  wait_for_kernels_before();
  const Sequence sequence(a, blockIdx.x);
  if (!sequence.reads_all()) {
    take_winners(a.votes, sequence, s);
    add_regions(sequence.regions, s);
    sort_keys(s);
  }
  const uint32_t runs = make_runs(a, sequence, s);
  const Totals totals = number_runs(runs, s);
  if (a.list_pages != nullptr) write_lists(a, sequence.index, runs, totals.pages, s);
  if (a.tokens != nullptr) {
    int32_t* tokens = a.tokens + size_t{sequence.index} * a.token_capacity;
    for (uint32_t i = threadIdx.x; i < min(totals.tokens, a.token_capacity); i += kThreads) {
      const uint32_t run = run_of(s.tokens, runs, i);
      tokens[i] = s.begin[run] + static_cast<int32_t>(i - s.tokens[run]);
    }
  }
  if (threadIdx.x != 0) return;
  const auto keys = static_cast<int32_t>(totals.tokens);
  a.keys[sequence.index] = keys;
  if (a.prefill != nullptr) {
    a.prefill[sequence.index] = {0, a.rows, keys - static_cast<int32_t>(a.rows)};
  }
}

// A thread per two dimensions.
__global__ __launch_bounds__(kThreads) void queries_kernel(
    const __grid_constant__ PackedQueriesArgs a) {
  wait_for_kernels_before();
  const uint32_t pairs = a.head_dim / 2, width = a.n_head * pairs;
  const size_t all = size_t{a.batch} * a.rows * width;
  const auto* angles = reinterpret_cast<const float2*>(a.angles.rows);
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < all;
       i += size_t{gridDim.x} * kThreads) {
    const auto row = static_cast<uint32_t>(i / width), pair = static_cast<uint32_t>(i % pairs);
    const auto keys = static_cast<uint32_t>(a.keys[row / a.rows]);
    float2 two = reinterpret_cast<const float2*>(a.q)[i];
    if (pair < a.angles.pairs && keys >= a.rows) {
      const uint32_t position = keys - a.rows + row % a.rows;
      const float2 by = angles[size_t{position + kPageTokens - 1} * a.angles.pairs + pair];
      two = {two.x * by.x - two.y * by.y, two.x * by.y + two.y * by.x};
    }
    two = {two.x * a.scale, two.y * a.scale};
    if (a.exact != nullptr) reinterpret_cast<float2*>(a.exact)[i] = two;
    if (a.rounded == nullptr) continue;
    reinterpret_cast<uint32_t*>(a.rounded)[i] = pack<__nv_bfloat16>(two.x, two.y);
  }
}

}  // namespace

cudaError_t key_spans(const KeySpansArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  const uint32_t regions = args.agreement != nullptr ? RowAgreement::kRegions : 0;
  if (std::max(args.spans, args.agreed_spans + regions) > kMaxSpans) return cudaErrorNotSupported;
  return launch_overlapped(spans_kernel, dim3(args.batch), kThreads, stream, args);
}

cudaError_t rotate_packed_queries(const PackedQueriesArgs& args, cudaStream_t stream) {
  const size_t pairs = size_t{args.batch} * args.rows * args.n_head * (args.head_dim / 2);
  if (pairs == 0) return cudaSuccess;
  const size_t most = size_t{device_limits().multiprocessors} * 4;
  const auto blocks = static_cast<uint32_t>(std::min((pairs + kThreads - 1) / kThreads, most));
  return launch_overlapped(queries_kernel, dim3(blocks), kThreads, stream, args);
}

}  // namespace reprise::kernels::cuda

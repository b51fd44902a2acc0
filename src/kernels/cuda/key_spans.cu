// One block per sequence: winners, in order of position by a bitonic sort, then runs of
// neighbouring keys and what is made of them.
#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/key_spans.h"
#include "kernels/cuda/key_winners.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_evidence.cuh"

namespace reprise::kernels::cuda {
namespace {

using namespace spans;

// Beside winners' there are two; two of those are cut short by the ends of the middle.
constexpr uint32_t kMaxRuns = kMaxSpans + 4;

struct Shared : Winners {
  int32_t begin[kMaxRuns], end[kMaxRuns];      // of runs
  uint32_t tokens[kMaxRuns], pages[kMaxRuns];  // before each run
};

// What the block knows of its sequence.
struct Sequence : Ballot {
  int32_t recent;                         // the last keys begin here
  const RowAgreement* regions = nullptr;  // null: there are none

  __device__ Sequence(const KeySpansArgs& a, uint32_t at) {
    sequence = at;
    length = a.positions[at] + 1;
    middle = middle_of(a.middle, a.positions[at], a.rows);
    spans = a.spans;
    recent = middle.end;
    regions = a.agreement != nullptr ? a.agreement[at] : nullptr;
    const bool gated = a.evidence.states != nullptr && !is_open(a.evidence, at);
    const bool agrees = regions != nullptr && regions->regions > 0;
    if (agrees) spans = a.agreed_spans;
    if (!gated && (regions == nullptr || agrees)) return;
    recent = max(middle.begin, min(middle.end, length - a.wide));
  }
  __device__ bool reads_all() const { return middle.begin >= middle.end; }
};

// The middles of regions that rows before agreed on.
__device__ void add_regions(const RowAgreement* regions, Shared& s) {
  __syncthreads();
  if (threadIdx.x == 0 && regions != nullptr) {
    for (uint32_t i = 0; i < regions->regions; ++i) s.keys[s.winners++] = regions->middle(i);
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
  extern __shared__ __align__(8) std::byte more[];
  wait_for_kernels_before();
  const Sequence sequence(a, blockIdx.x);
  if (!sequence.reads_all()) {
    take_winners(a, sequence, s, reinterpret_cast<Filling*>(more));
    add_regions(sequence.regions, s);
    sort_ascending(s.keys, s.winners, INT32_MAX);
  }
  const uint32_t runs = make_runs(a, sequence, s);
  const Totals totals = number_runs(runs, s);
  if (a.list_pages != nullptr) write_lists(a, sequence.sequence, runs, totals.pages, s);
  if (a.tokens != nullptr) {
    int32_t* tokens = a.tokens + size_t{sequence.sequence} * a.token_capacity;
    for (uint32_t i = threadIdx.x; i < min(totals.tokens, a.token_capacity); i += kThreads) {
      const uint32_t run = run_of(s.tokens, runs, i);
      tokens[i] = s.begin[run] + static_cast<int32_t>(i - s.tokens[run]);
    }
  }
  if (threadIdx.x != 0) return;
  const auto keys = static_cast<int32_t>(totals.tokens);
  a.keys[sequence.sequence] = keys;
  if (a.prefill != nullptr) {
    a.prefill[sequence.sequence] = {0, a.rows, keys - static_cast<int32_t>(a.rows)};
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
  if (!args.fill) return launch_overlapped(spans_kernel, dim3(args.batch), kThreads, stream, args);
  if (args.spans * args.span > kMaxFilled) return cudaErrorNotSupported;
  const cudaError_t status = allow_all_shared(spans_kernel);
  if (status != cudaSuccess) return status;
  return launch_overlapped(spans_kernel, dim3(args.batch), kThreads, sizeof(Filling), stream, args);
}

cudaError_t rotate_packed_queries(const PackedQueriesArgs& args, cudaStream_t stream) {
  const size_t pairs = size_t{args.batch} * args.rows * args.n_head * (args.head_dim / 2);
  if (pairs == 0) return cudaSuccess;
  const size_t most = size_t{device_limits().multiprocessors} * 4;
  const auto blocks = static_cast<uint32_t>(std::min((pairs + kThreads - 1) / kThreads, most));
  return launch_overlapped(queries_kernel, dim3(blocks), kThreads, stream, args);
}

}  // namespace reprise::kernels::cuda

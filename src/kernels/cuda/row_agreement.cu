// One block per sequence: votes of the last rows are added up by page in a table in shared memory,
// the heaviest pairs of pages are taken one after the other, then the layer's own votes are noted.
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_agreement.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 512, kWarps = kThreads / 32, kSlots = RowAgreement::kVotes;
constexpr int32_t kRegionPages = RowAgreement::kRegionPages;

struct Shared {
  int32_t pages[kSlots], weights[kSlots];  // a page's slot is found from its number on
  uint64_t best[kWarps];
  uint32_t total;
};

__device__ uint32_t first_slot(int32_t page) {
  return static_cast<uint32_t>(page) * 2654435761u % kSlots;
}

__device__ void add(Shared& s, int32_t page, int32_t weight) {
  uint32_t slot = first_slot(page);
  while (true) {  // there are as many slots as votes
    const int32_t there = atomicCAS(&s.pages[slot], -1, page);
    if (there == -1 || there == page) break;
    slot = (slot + 1) % kSlots;
  }
  atomicAdd(&s.weights[slot], weight);
}

__device__ int32_t weight_of(const Shared& s, int32_t page) {
  uint32_t slot = first_slot(page);
  for (uint32_t tries = 0; tries < kSlots && s.pages[slot] >= 0; ++tries) {
    if (s.pages[slot] == page) return s.weights[slot];
    slot = (slot + 1) % kSlots;
  }
  return 0;
}

__device__ void add_recent(const RowAgreement& state, int32_t row, const AgreementRules& rules,
                           Shared& s) {
  for (uint32_t left = state.end - state.begin; left > 0;) {
    const bool there = threadIdx.x < left;
    const uint32_t at = (state.begin + left - 1 - threadIdx.x) % RowAgreement::kVotes;
    const int32_t back = there ? row - state.row_of[at] : 0;
    if (there && back >= 0 && back < rules.reach) add(s, state.page_of[at], rules.weights[back]);
    if (__syncthreads_or(back >= rules.reach)) return;  // those before are older still
    left -= min(left, kThreads);
  }
  __syncthreads();
}

// Weight and page + 1 of the heaviest region that shares no page with those before; 0: none.
__device__ uint64_t heaviest(const Shared& s, const int32_t* pages, uint32_t regions,
                             int32_t least) {
  uint64_t best = 0;
  for (uint32_t slot = threadIdx.x; slot < kSlots; slot += kThreads) {
    const int32_t page = s.pages[slot];
    if (page < 0) continue;
    bool apart = true;
    for (uint32_t i = 0; i < regions; ++i) apart = apart && abs(page - pages[i]) >= kRegionPages;
    const int32_t weight = s.weights[slot] + weight_of(s, page + 1);
    if (!apart || weight < least) continue;
    best = max(best, static_cast<uint64_t>(weight) << 32 | static_cast<uint32_t>(page + 1));
  }
  return best;
}

__device__ uint64_t heaviest_of_block(Shared& s, uint64_t best) {
  for (uint32_t step = 16; step > 0; step /= 2) {
    best = max(best, __shfl_xor_sync(~0u, best, step));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.best[threadIdx.x / 32] = best;
  __syncthreads();
  for (const uint64_t each : s.best) best = max(best, each);
  return best;
}

// Those of the heaviest that lie in the middle.
__device__ void find_regions(RowAgreement& state, int32_t least, KeyRange32 middle, Shared& s) {
  int32_t pages[RowAgreement::kRegions];
  uint32_t regions = 0;
  while (regions < RowAgreement::kRegions) {
    const uint64_t best = heaviest_of_block(s, heaviest(s, pages, regions, least));
    if (best == 0) break;
    pages[regions++] = static_cast<int32_t>(best & 0xffffffffu) - 1;
  }
  if (threadIdx.x != 0) return;
  state.regions = 0;
  for (uint32_t i = 0; i < regions; ++i) {
    state.pages[state.regions] = pages[i];
    const int32_t key = state.middle(state.regions);
    if (key >= middle.begin && key < middle.end) ++state.regions;
  }
  ++state.rows;
  if (state.regions > 0) ++state.open;
}

// In the order of keys, so that results do not depend on that of threads.
__device__ void note_votes(RowAgreement& state, const VoteTables& votes, uint32_t sequence,
                           int32_t row, Shared& s) {
  const size_t at = size_t{sequence} * votes.slots;
  const uint32_t count = votes.count[sequence], end = state.end;
  if (threadIdx.x == 0) s.total = 0;
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < count; c += kThreads) {
    const size_t slot = at + votes.used[at + c];
    const uint32_t key = votes.keys[slot], own = votes.votes[slot];
    uint32_t before = 0;
    for (uint32_t other = 0; other < count; ++other) {
      const size_t there = at + votes.used[at + other];
      if (votes.keys[there] < key) before += votes.votes[there];
    }
    for (uint32_t i = 0; i < own; ++i) {
      const uint32_t to = (end + before + i) % RowAgreement::kVotes;
      state.row_of[to] = row;
      state.page_of[to] = static_cast<int32_t>((key - 1) / kPageTokens);
    }
    atomicAdd(&s.total, own);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  state.end = end + s.total;
  if (state.end - state.begin > RowAgreement::kVotes)
    state.begin = state.end - RowAgreement::kVotes;
}

// For rows that do not scan.
__device__ void keep_votes(KeptVotes& kept, const AgreementArgs& a, uint32_t sequence,
                           int32_t row) {
  const VoteTables& votes = a.votes;
  const size_t at = size_t{sequence} * votes.slots;
  const uint32_t count = min(votes.count[sequence], KeptVotes::kKeys);
  for (uint32_t c = threadIdx.x; c < count; c += kThreads) {
    const size_t slot = at + votes.used[at + c];
    kept.keys[c] = votes.keys[slot];
    kept.votes[c] = votes.votes[slot];
    kept.best[c] = votes.best[slot];
  }
  if (threadIdx.x != 0) return;
  kept.row = row;
  kept.prompt_end = a.scans.prompt_ends[sequence];
  kept.count = count;
}

__device__ bool scans(const KeptVotes& kept, const SharedScans& shared, int32_t row,
                      int32_t prompt_end) {
  if (kept.prompt_end != prompt_end || kept.row < prompt_end || row < prompt_end) return true;
  const auto turn = [&](int32_t at) {
    return (at - prompt_end + static_cast<int32_t>(shared.layer)) / shared.rows;
  };
  return turn(kept.row) != turn(row);
}

// One block per sequence, a thread for each key.
__global__ __launch_bounds__(KeptVotes::kKeys) void scans_kernel(
    const __grid_constant__ AgreementArgs a) {
  wait_for_kernels_before();
  const uint32_t sequence = blockIdx.x;
  const int32_t row = a.positions[sequence];
  const RowAgreement* state = row < 0 ? nullptr : a.states[sequence];
  const KeptVotes* kept = state == nullptr ? nullptr : &state->kept[a.scans.layer];
  const KeyRange32 middle = middle_of(a.middle, row, 1);
  const bool own = kept == nullptr || middle.begin >= middle.end ||
                   scans(*kept, a.scans, row, a.scans.prompt_ends[sequence]);
  if (threadIdx.x == 0) a.scans.scanning[sequence] = own ? row : -1;
  if (own || threadIdx.x >= kept->count) return;
  const size_t at = size_t{sequence} * a.votes.slots;
  const uint32_t key = kept->keys[threadIdx.x];
  uint32_t slot = first_vote_slot(a.votes, key);
  while (atomicCAS(a.votes.keys + at + slot, 0u, key) != 0) slot = (slot + 1) & (a.votes.slots - 1);
  a.votes.used[at + atomicAdd(a.votes.count + sequence, 1u)] = slot;
  a.votes.votes[at + slot] = kept->votes[threadIdx.x];
  a.votes.best[at + slot] = kept->best[threadIdx.x];
}

__global__ __launch_bounds__(kThreads) void agreement_kernel(
    const __grid_constant__ AgreementArgs a) {
  __shared__ Shared s;
  for (uint32_t slot = threadIdx.x; slot < kSlots; slot += kThreads) {
    s.pages[slot] = -1;
    s.weights[slot] = 0;
  }
  wait_for_kernels_before();
  const int32_t row = a.positions[blockIdx.x];
  if (row < 0 || a.states[blockIdx.x] == nullptr) return;
  RowAgreement& state = *a.states[blockIdx.x];
  const KeyRange32 middle = middle_of(a.middle, row, 1);
  if (middle.begin >= middle.end) {
    if (threadIdx.x == 0) state.regions = 0;
    return;
  }
  __syncthreads();
  add_recent(state, row, a.rules, s);
  find_regions(state, a.rules.enough(row), middle, s);
  __syncthreads();
  note_votes(state, a.votes, blockIdx.x, row, s);
  if (a.scans.scanning == nullptr || a.scans.scanning[blockIdx.x] < 0) return;
  keep_votes(state.kept[a.scans.layer], a, blockIdx.x, row);
}

// Rows ascend, so that what is forgotten is the end.
__global__ __launch_bounds__(kThreads) void forget_kernel(RowAgreement* forgetting,
                                                          int32_t length) {
  __shared__ uint32_t kept;
  RowAgreement& state = *forgetting;
  if (threadIdx.x == 0) kept = 0;
  if (threadIdx.x < RowAgreement::kLayers && state.kept[threadIdx.x].row >= length) {
    state.kept[threadIdx.x].row = -1;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < state.end - state.begin; i += kThreads) {
    if (state.row_of[(state.begin + i) % RowAgreement::kVotes] < length) atomicAdd(&kept, 1u);
  }
  __syncthreads();
  if (threadIdx.x == 0) state.end = state.begin + kept;
}

}  // namespace

cudaError_t begin_scans(const AgreementArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  return launch_overlapped(scans_kernel, dim3(args.batch), KeptVotes::kKeys, stream, args);
}

cudaError_t find_agreement(const AgreementArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  return launch_overlapped(agreement_kernel, dim3(args.batch), kThreads, stream, args);
}

cudaError_t forget_agreement(RowAgreement* state, int32_t length, cudaStream_t stream) {
  forget_kernel<<<1, kThreads, 0, stream>>>(state, length);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

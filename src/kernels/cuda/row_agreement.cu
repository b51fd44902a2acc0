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

// In the order of heads.
__device__ void note_votes(RowAgreement& state, const uint32_t* leaders, uint32_t n_head,
                           int32_t row) {
  const uint32_t end = state.end;
  uint32_t total = 0;
  for (uint32_t head = 0; head < n_head; ++head) total += leaders[head] != 0 ? 1 : 0;
  __syncthreads();
  for (uint32_t head = threadIdx.x; head < n_head; head += kThreads) {
    if (leaders[head] == 0) continue;
    uint32_t before = 0;
    for (uint32_t other = 0; other < head; ++other) before += leaders[other] != 0 ? 1 : 0;
    const uint32_t to = (end + before) % RowAgreement::kVotes;
    state.row_of[to] = row;
    state.page_of[to] = static_cast<int32_t>((leaders[head] - 1) / kPageTokens);
  }
  if (threadIdx.x != 0) return;
  state.end = end + total;
  if (state.end - state.begin > RowAgreement::kVotes)
    state.begin = state.end - RowAgreement::kVotes;
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
  if (a.leaders == nullptr) return;
  note_votes(state, a.leaders + size_t{blockIdx.x} * a.n_head, a.n_head, row);
}

// Rows ascend, so that what is forgotten is the end.
__global__ __launch_bounds__(kThreads) void forget_kernel(RowAgreement* forgetting,
                                                          int32_t length) {
  __shared__ uint32_t kept;
  RowAgreement& state = *forgetting;
  if (threadIdx.x == 0) kept = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < state.end - state.begin; i += kThreads) {
    if (state.row_of[(state.begin + i) % RowAgreement::kVotes] < length) atomicAdd(&kept, 1u);
  }
  __syncthreads();
  if (threadIdx.x == 0) state.end = state.begin + kept;
}

}  // namespace

cudaError_t find_agreement(const AgreementArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  return launch_overlapped(agreement_kernel, dim3(args.batch), kThreads, stream, args);
}

cudaError_t forget_agreement(RowAgreement* state, int32_t length, cudaStream_t stream) {
  forget_kernel<<<1, kThreads, 0, stream>>>(state, length);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

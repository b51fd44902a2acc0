// A launch of MAC-Attention that reuses nothing: decode attention, and what its rows leave.
#pragma once

#include "kernels/cuda/mac_guard.cuh"
#include "kernels/cuda/mac_search.cuh"
#include "kernels/cuda/paged_decode_block.cuh"

namespace reprise::kernels::cuda {

namespace mac {

// What follows finds its lists itself: they would take registers from the loop over pages before
// it, which is what a resting launch does.

// A pair's queries go to its ring, without a result. All threads of one block.
template <typename S>
__device__ __noinline__ void remember(const Params& p, decode::Shared<S>& shared, uint32_t pair) {
  constexpr int D = S::kHeadDim;
  const Lists lists(p, shared.first_page(p.group));
  const Row& row = lists.row(p, pair);
  MacCounters* counters = row.has_ring() ? lists.counters(p, pair) : nullptr;
  if (row.may_reuse(p) && threadIdx.x == 0) {
    note_listed<S>(p, lists, pair);
    atomicAdd(&counters->steps, 1ull);
    atomicAdd(&counters->keys, static_cast<unsigned long long>(row.position + 1));
  }
  if (!row.stores(p)) return;
  const uint32_t size = p.group * D;
  const size_t own = lists.slot(p, pair, row.position) * p.group;
  bool finite = true;
  for (uint32_t i = threadIdx.x * 2; i < size; i += blockDim.x * 2) {
    const float2 q = __ldcg(reinterpret_cast<const float2*>(p.q_plain + size_t{pair} * size + i));
    finite = finite && isfinite(q.x) && isfinite(q.y);
    store_query<S::kCoded>(p.ring, own * D + i, q);
  }
  finite = __syncthreads_and(finite ? 1 : 0) != 0;
  if (threadIdx.x < p.group) {
    const int32_t position = row.position;
    const MacEntry& last = lists.entries(p, pair, position - 1)[threadIdx.x];
    const float peak = peak_of(p.ring, 0.0f, last, position);  // of a share that is not known
    p.ring.entries[own + threadIdx.x] = {
        finite ? position : -1, position, -INFINITY, peak, 0.0f, peak, 0};
  }
  if (threadIdx.x != 0) return;
  lists.guard(p, pair)->rested = row.position;
  if (!finite) atomicAdd(&counters->nonfinite, 1ull);
}

// Shows guards what reuse would have saved. All blocks of the grid.
template <typename S>
__device__ __noinline__ void try_reuse(const Params& p, decode::Shared<S>& shared,
                                       SearchShared& search) {
  const Lists lists(p, shared.first_page(p.group));
  __syncthreads();
  GridBarrier barrier{p.barrier};
  barrier.look();
  Search<S>(p, lists, search, false).run(barrier.launch());
  find_compared(p, lists);
  barrier.arrive();
  decide(p, lists, true, barrier.launch());
  for (uint32_t pair = blockIdx.x; pair < p.pairs; pair += gridDim.x) {
    if (threadIdx.x != 0 || lists.compares[pair] == 0) continue;
    barrier.wait();  // every block has asked the guards
    judge<S>(p, lists, pair, false);
  }
}

template <typename S>
__device__ void rest(const Params& p, decode::Shared<S>& shared, SearchShared& search, bool tries) {
  if (!p.known_pages) wait_for_kernels_before();
  decode::attend_pairs(p, shared, [&](uint32_t pair) { remember<S>(p, shared, pair); });
  if (p.known_pages) wait_for_kernels_before();  // blocks without a page
  if (tries) try_reuse<S>(p, shared, search);
}

}  // namespace mac

}  // namespace reprise::kernels::cuda

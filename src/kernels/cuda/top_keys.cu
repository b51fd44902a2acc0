// A scan (top_keys_kv.cu), then one warp per query that merges what its blocks found and casts the
// votes.
#include <algorithm>

#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_evidence.cuh"
#include "kernels/cuda/top_keys.h"
#include "kernels/cuda/top_keys_scan.cuh"

namespace reprise::kernels::cuda {
namespace {

using namespace top;

constexpr uint32_t kMergeWarps = 4;
constexpr uint32_t kManyLists = 16;  // for a warp

__device__ void vote(const VoteTables& tables, uint32_t sequence, RankedWord word, uint32_t votes) {
  const size_t at = size_t{sequence} * tables.slots;
  const uint32_t key = static_cast<uint32_t>(key_of(word)) + 1;
  uint32_t slot = first_vote_slot(tables, key);
  for (;; slot = (slot + 1) & (tables.slots - 1)) {
    const uint32_t before = atomicCAS(tables.keys + at + slot, 0u, key);
    if (before == 0) tables.used[at + atomicAdd(tables.count + sequence, 1u)] = slot;
    if (before == 0 || before == key) break;
  }
  atomicAdd(tables.votes + at + slot, votes);
  atomicMax(tables.best + at + slot, static_cast<uint32_t>(word >> 32));
}

// What a query tells the next layer's; the first one also what it was told.
__device__ void add_evidence(const EvidenceArgs& args, uint32_t sequence, bool first, bool leads,
                             bool open) {
  RowEvidence* state = args.states != nullptr ? args.states[sequence] : nullptr;
  if (state == nullptr) return;
  const uint32_t heads = (first ? state->sums[args.turn % 3] : 0) + (leads ? 1 : 0);
  if (heads > 0) atomicAdd(&state->sums[(args.turn + 1) % 3], heads);
  if (!first) return;
  state->sums[(args.turn + 2) % 3] = 0;
  ++state->rows;
  state->open += open ? 1 : 0;
}

// For the words of a query, in order. All lanes of a warp.
__device__ void cast_votes(const TopKeysArgs& a, uint32_t sequence, const RankedWord* words,
                           uint32_t count) {
  const uint32_t lane = threadIdx.x % 32;
  const auto weight = [&](uint32_t at) {
    const auto score = [&](uint32_t i) { return __uint_as_float(score_bits(words[i])); };
    return expf((score(at) - score(0)) * a.soft);
  };
  float sum = 0.0f;
  for (uint32_t at = lane; a.soft > 0.0f && at < count; at += 32) sum += weight(at);
  for (uint32_t step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  for (uint32_t at = lane; at < count; at += 32) {
    const float parts = a.soft > 0.0f ? roundf(kVoteParts * weight(at) / sum) : 1.0f;
    vote(a.votes, sequence, words[at], static_cast<uint32_t>(parts));
  }
}

// A query's best words of all splits. kEach: warps of a block that share them; the first one has
// all.
template <uint32_t kEach>
__device__ uint32_t merge(const Params& p, const RankedWord* found, size_t split,
                          RankedWord (&best)[kMergeWarps][kMostMergeRoom]) {
  const uint32_t warp = threadIdx.x / 32, part = warp % kEach, k = p.a.k;
  const auto word = [&](uint32_t list, uint32_t place) {
    return found[(part + list * kEach) * split + place];
  };
  const uint32_t lists = (p.splits - min(part, p.splits) + kEach - 1) / kEach;
  const uint32_t count = best_of(k, WordLists{lists, k, word}, best[warp]);
  if constexpr (kEach == 1) return count;
  __shared__ uint32_t counts[kMergeWarps];
  __shared__ RankedWord all[kMostMergeRoom];
  if (threadIdx.x % 32 == 0) counts[warp] = count;
  __syncthreads();
  if (warp > 0) return 0;
  const auto of_warp = [&](uint32_t of, uint32_t place) {
    return place < counts[of] ? best[of][place] : 0;
  };
  const uint32_t held = best_of(k, WordLists{kEach, k, of_warp}, all);
  for (uint32_t at = threadIdx.x; at < held; at += 32) best[0][at] = all[at];
  __syncwarp();
  return held;
}

// kEach warps per query; grid (queries of all KV heads * kEach / kMergeWarps, batch).
template <uint32_t kEach>
__global__ __launch_bounds__(kMergeWarps * 32) void merge_kernel(const __grid_constant__ Params p) {
  __shared__ RankedWord best[kMergeWarps][kMostMergeRoom];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, sequence = blockIdx.y;
  const uint32_t query = (blockIdx.x * kMergeWarps + warp) / kEach, k = p.a.k;
  wait_for_kernels_before();
  if (query >= p.queries * p.a.kv.n_kv_head) return;
  const KeyRange32 middle = middle_of(p.a.middle, p.a.positions[sequence], p.a.rows);
  if (middle.begin >= middle.end) return;
  const uint32_t kv_head = query / p.queries, i = query % p.queries;
  const RankedWord* found = p.list(sequence, 0, kv_head, i);
  const size_t split = p.list(sequence, 1, kv_head, i) - found;
  const uint32_t count = merge<kEach>(p, found, split, best);
  if (warp % kEach != 0) return;
  if (lane == 0) p.floors_of(sequence, kv_head)[i] = 0;
  const size_t row = size_t{sequence} * p.a.voters() + i / p.group;
  const size_t head = row * p.a.n_head + kv_head * p.group + i % p.group;
  const auto score = [](RankedWord word) { return __uint_as_float(score_bits(word)); };
  const bool leads = p.a.lead <= 0.0f || count < p.a.lead_rank ||
                     score(best[warp][0]) - score(best[warp][p.a.lead_rank - 1]) >= p.a.lead;
  const bool votes = p.a.voting == nullptr || p.a.voting[head % p.a.n_head] != 0;
  const bool open = is_open(p.a.evidence, sequence), casts = votes && (leads || open);
  if (lane == 0) add_evidence(p.a.evidence, sequence, query == 0, votes && leads, open);
  if (p.a.found != nullptr) {
    for (uint32_t at = lane; at < k; at += 32) {
      p.a.found[head * k + at] = at < count ? best[warp][at] : 0;
    }
  }
  const float least = p.a.least != nullptr ? p.a.least[head] : -INFINITY;
  uint32_t weighs = 0;  // they are in order
  while (weighs < min(count, p.a.votes_each) && score(best[warp][weighs]) >= least) ++weighs;
  if (p.a.leaders != nullptr && lane == 0) {
    const auto key = static_cast<uint32_t>(key_of(best[warp][0]));
    p.a.leaders[head] = votes && leads && weighs > 0 ? key + 1 : 0;
  }
  if (p.a.votes.keys != nullptr && casts) cast_votes(p.a, sequence, best[warp], weighs);
}

}  // namespace

size_t top_keys_workspace(uint32_t batch, uint32_t voters, uint32_t n_head, uint32_t n_kv_head,
                          uint32_t k) {
  // There are as many splits as make two blocks of a processor at most, or one.
  const uint32_t most = std::max(2 * device_limits().multiprocessors / n_kv_head, batch);
  return size_t{most} * voters * n_head * k * sizeof(RankedWord);
}

cudaError_t top_keys(const TopKeysArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  if (args.k == 0 || args.k > kMaxTopKeys) return cudaErrorNotSupported;
  if (args.lead_rank == 0 || args.lead_rank > args.k) return cudaErrorInvalidValue;
  Params p = {};
  p.a = args;
  p.group = args.n_head / args.kv.n_kv_head;
  p.queries = args.voters() * p.group;
  p.found = static_cast<RankedWord*>(args.workspace);
  const cudaError_t status =
      with_kv_type(args.kv.type, [&](auto type) { return scan_with<type.value>(p, stream); });
  if (status != cudaSuccess) return status;
  const auto merge_by = [&](auto kernel, uint32_t each) {
    const uint32_t blocks = pieces(p.queries * args.kv.n_kv_head * each, kMergeWarps);
    return launch_overlapped(kernel, dim3(blocks, args.batch), kMergeWarps * 32, stream, p);
  };
  return p.splits > kManyLists ? merge_by(merge_kernel<kMergeWarps>, kMergeWarps)
                               : merge_by(merge_kernel<1>, 1);
}

}  // namespace reprise::kernels::cuda

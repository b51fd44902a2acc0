// What every page of a sequence gets of a decode row's attention: a pass over keys alone.
#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_keys.cuh"
#include "kernels/cuda/page_shares.h"
#include "kernels/cuda/row_turns.cuh"
#include "kernels/cuda/share_history.cuh"
#include "kernels/cuda/top_pages.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kWarps = 8, kThreads = kWarps * 32;
constexpr uint32_t kShareThreads = top::kThreads;
constexpr uint32_t kMaxGroup = 16;
static_assert(kMaxGroup <= kShareThreads / 32);

// Of a page and the lane's two queries: the largest logit and log2 of the sum of exponentials.
struct PageLogs {
  float most[2], sum[2];
};

template <KvType type, uint32_t D>
__device__ PageLogs page_logs(const TileKeys<type, D>& tile, const EightQueries<type, D>& q,
                              const WholeSharesArgs& a, uint32_t keys) {
  float logits[4];
  tile.multiply_by(q, logits);
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (uint32_t i = 0; i < 4; ++i) {
    const bool there = TileKeys<type, D>::lane_token(i / 2) < keys;
    logits[i] = there ? scaled_logit(logits[i], a.scale, a.soft_cap) : -INFINITY;
    most[i % 2] = fmaxf(most[i % 2], logits[i]);
  }
  for (uint32_t mask = 4; mask < 32; mask *= 2) {
    for (float& x : most) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
  }
  for (uint32_t i = 0; i < 4; ++i) sum[i % 2] += exp2_fast(logits[i] - most[i % 2]);
  for (uint32_t mask = 4; mask < 32; mask *= 2) {
    for (float& x : sum) x += __shfl_xor_sync(~0u, x, mask);
  }
  return {{most[0], most[1]}, {most[0] + __log2f(sum[0]), most[1] + __log2f(sum[1])}};
}

// What stands for a page: the largest logit, behind the logarithms of sums, or those.
__device__ float* peaks_of(const WholeSharesArgs& a) {
  return a.largest ? a.logs + size_t{a.rows} * a.n_head * a.capacity : a.logs;
}

// log2 of a sum, as its largest term's and what it is a multiple of.
struct LogSum {
  float most = -INFINITY, sum = 0.0f;

  __device__ void add(float other_most, float other_sum) {
    const float high = fmaxf(most, other_most);
    if (high == -INFINITY) return;
    sum = sum * exp2f(most - high) + other_sum * exp2f(other_most - high);
    most = high;
  }
  __device__ void add_lanes() {
    for (uint32_t mask = 1; mask < 32; mask *= 2) {
      add(__shfl_xor_sync(~0u, most, mask), __shfl_xor_sync(~0u, sum, mask));
    }
  }
};

// What warps of a block found for eight queries, to a.sums. All threads.
__device__ void publish_sums(const WholeSharesArgs& a, const LogSum (&own)[2], uint32_t first_head,
                             uint32_t heads, uint32_t split, uint32_t splits) {
  __shared__ LogSum warps[kWarps][8];
  const uint32_t lane = threadIdx.x % 32;
  if (lane < 4) {
    for (uint32_t i = 0; i < 2; ++i) warps[threadIdx.x / 32][lane * 2 + i] = own[i];
  }
  __syncthreads();
  if (threadIdx.x < heads) {
    LogSum all;
    for (const auto& warp : warps) all.add(warp[threadIdx.x].most, warp[threadIdx.x].sum);
    a.sums[size_t{first_head + threadIdx.x} * splits + split] = {all.most, all.sum};
  }
  __syncthreads();
}

// Warps of the blocks of a KV head take pages in turn, so many at once.
template <KvType type, uint32_t D>
__device__ void score_pages_of(const WholeSharesArgs& a, uint32_t row, uint32_t kv_head,
                               uint32_t split, uint32_t splits) {
  constexpr uint32_t kAtOnce = D > 128 ? 1 : 2;
  const uint32_t group = a.n_head / a.kv.n_kv_head, lane = threadIdx.x % 32;
  const uint32_t head = row * a.n_head + kv_head * group, stride = splits * kWarps;
  const auto keys = static_cast<uint32_t>(a.positions[row]) + 1;
  const uint32_t end = (keys + kPageTokens - 1) / kPageTokens;
  const uint32_t* table = a.pages + (a.one_table ? 0 : size_t{row} * a.capacity);
  for (uint32_t start = 0; start < group; start += 8) {
    EightQueries<type, D> q;
    q.load(a.q + size_t{head + min(start + EightQueries<type, D>::lane_query(), group - 1)} * D);
    const uint32_t query = start + lane * 2;
    LogSum sums[2];
    const auto score = [&](const TileKeys<type, D>& tile, uint32_t page) {
      const PageLogs logs = page_logs<type, D>(tile, q, a, keys - page * kPageTokens);
      for (uint32_t i = 0; i < 2; ++i) sums[i].add(logs.sum[i], 1.0f);
      if (lane >= 4) return;
      const size_t out = size_t{head + query} * a.capacity + page;
      for (uint32_t i = 0; i < 2 && query + i < group; ++i) {
        a.logs[out + i * a.capacity] = logs.sum[i];
        if (a.largest) peaks_of(a)[out + i * a.capacity] = logs.most[i];
      }
    };
    // Ids of as many pages as there are lanes come at once.
    for (uint32_t first = split * kWarps + threadIdx.x / 32; first < end; first += 32 * stride) {
      const uint32_t ids = table[min(first + lane * stride, end - 1)];
      for (uint32_t i = 0; i < 32 && first + i * stride < end; i += kAtOnce) {
        const auto tile_of = [&](uint32_t n) {
          return TileKeys<type, D>(key_tile(a.kv, __shfl_sync(~0u, ids, n), kv_head));
        };
        const uint32_t page = first + i * stride, next = page + stride;
        const TileKeys<type, D> tile = tile_of(i);
        if (kAtOnce == 1 || next >= end) {
          score(tile, page);
          continue;
        }
        const TileKeys<type, D> next_tile = tile_of(i + 1);
        score(tile, page);
        score(next_tile, next);
      }
    }
    publish_sums(a, sums, head + start, min(8u, group - start), split, splits);
  }
}

// Shares of a KV head whose pages are scored. A block; heads: the group's at least, which are read
// side by side.
template <uint32_t heads>
__device__ void share_pages(const WholeSharesArgs& a, uint32_t row, uint32_t kv_head,
                            uint32_t splits) {
  __shared__ float all_totals[heads];
  const uint32_t group = a.n_head / a.kv.n_kv_head, lane = threadIdx.x % 32;
  const uint32_t first_head = row * a.n_head + kv_head * group;
  const auto pages = static_cast<uint32_t>(a.positions[row]) / kPageTokens + 1;
  const float* peaks = peaks_of(a) + size_t{first_head} * a.capacity;
  const auto at = [&](uint32_t i, uint32_t page) {
    return size_t{min(i, group - 1)} * a.capacity + page;
  };
  if (const uint32_t warp = threadIdx.x / 32; warp < group) {
    LogSum all;
    for (uint32_t i = lane; i < splits; i += 32) {
      const float2 part = a.sums[size_t{first_head + warp} * splits + i];
      all.add(part.x, part.y);
    }
    all.add_lanes();
    if (lane == 0) all_totals[warp] = all.most + log2f(all.sum);
  }
  __syncthreads();
  float totals[heads];
#pragma unroll
  for (uint32_t i = 0; i < heads; ++i) totals[i] = all_totals[min(i, group - 1)];
  const size_t own = a.averages != nullptr ? size_t{a.slots[row]} * a.kv.n_kv_head + kv_head : 0;
  float* averages = a.averages != nullptr ? a.averages + own * a.capacity : nullptr;
  float* shares = a.shares + (size_t{row} * a.kv.n_kv_head + kv_head) * a.capacity;
  float* history = nullptr;
  if (a.history.rows != nullptr) {
    history = history_row(a.history, own, a.positions[row], a.capacity);
  }
  for (uint32_t page = threadIdx.x; page < pages; page += kShareThreads) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < heads; ++i) {
      const float part = exp2f(peaks[at(i, page)] - totals[i]);
      if (i < group) sum += part;
    }
    const float share = sum / static_cast<float>(group);
    shares[page] = share;
    if (averages != nullptr) {
      averages[page] = a.factor * averages[page] + (1.0f - a.factor) * share;
    }
    if (history != nullptr) history[page] = history_value(a.history, share);
  }
  if (history == nullptr) return;
  for (uint32_t page = pages + threadIdx.x; page < a.capacity; page += kShareThreads) {
    history[page] = 0.0f;
  }
}

template <KvType type, uint32_t D>
__global__ __launch_bounds__(kThreads) void score_kernel(const __grid_constant__ WholeSharesArgs a,
                                                         uint32_t splits) {
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t list = blockIdx.x / splits, row = list / a.kv.n_kv_head;
  if (!has_turn(a.turns, a.positions[row])) return;
  score_pages_of<type, D>(a, row, list % a.kv.n_kv_head, blockIdx.x % splits, splits);
}

// A block per list.
template <bool chooses, uint32_t heads>
__global__ __launch_bounds__(kShareThreads) void share_kernel(
    const __grid_constant__ WholeSharesArgs a, const __grid_constant__ TopPagesArgs choice,
    uint32_t splits) {
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t row = blockIdx.x / a.kv.n_kv_head;
  if (!has_turn(a.turns, a.positions[row])) return;
  share_pages<heads>(a, row, blockIdx.x % a.kv.n_kv_head, splits);
  if constexpr (chooses) {
    __shared__ __align__(16) top::Shared s;
    __syncthreads();
    top::choose_list(choice, blockIdx.x, s);
  }
}

// Blocks that share a list: what the device holds at once.
uint32_t blocks_of(uint32_t lists) {
  constexpr uint32_t kBlocks = 2;  // of a multiprocessor
  return std::max(device_limits().multiprocessors * kBlocks / lists, 1u);
}

}  // namespace

size_t whole_shares_sums(uint32_t rows, uint32_t n_head, uint32_t n_kv_head) {
  size_t most = 0;
  for (uint32_t i = 1; i <= rows; ++i) {
    most = std::max(most, size_t{i} * n_head * blocks_of(i * n_kv_head));
  }
  return most;
}

cudaError_t whole_shares(const WholeSharesArgs& args, const TopPagesArgs* choice,
                         cudaStream_t stream) {
  const uint32_t lists = args.rows * args.kv.n_kv_head;
  if (lists == 0) return cudaSuccess;
  const uint32_t group = args.n_head / args.kv.n_kv_head;
  if (group < 1 || group > kMaxGroup) return cudaErrorNotSupported;
  const uint32_t most = (args.capacity + kWarps - 1) / kWarps;
  const uint32_t splits = std::min(blocks_of(lists), std::max(most, 1u));
  const cudaError_t error = with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    return launch_overlapped(score_kernel<type, dim>, dim3(lists * splits), kThreads, stream, args,
                             splits);
  });
  if (error != cudaSuccess) return error;
  constexpr uint32_t kFew = 4;
  const auto share = [&](auto kernel) {
    return launch_overlapped(kernel, dim3(lists), kShareThreads, stream, args,
                             choice != nullptr ? *choice : TopPagesArgs(), splits);
  };
  if (choice == nullptr) return share(share_kernel<false, kMaxGroup>);
  return group <= kFew ? share(share_kernel<true, kFew>) : share(share_kernel<true, kMaxGroup>);
}

}  // namespace reprise::kernels::cuda

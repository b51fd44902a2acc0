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
constexpr uint32_t kShareThreads = top::kThreads, kShareWarps = kShareThreads / 32;
constexpr uint32_t kMaxGroup = 16;
static_assert(kShareWarps == 32);

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

// Warps of the blocks of a KV head take pages in turn, so many at once.
template <KvType type, uint32_t D>
__device__ void score_pages_of(const WholeSharesArgs& a, uint32_t row, uint32_t kv_head,
                               uint32_t split, uint32_t splits) {
  constexpr uint32_t kAtOnce = D > 128 ? 1 : 2;
  const uint32_t group = a.n_head / a.kv.n_kv_head, lane = threadIdx.x % 32;
  const uint32_t head = row * a.n_head + kv_head * group, stride = splits * kWarps;
  const auto keys = static_cast<uint32_t>(a.positions[row]) + 1;
  const uint32_t* pages = a.pages + (a.one_table ? 0 : size_t{row} * a.capacity);
  for (uint32_t start = 0; start < group; start += 8) {
    EightQueries<type, D> q;
    q.load(a.q + size_t{head + min(start + EightQueries<type, D>::lane_query(), group - 1)} * D);
    const uint32_t query = start + lane * 2;
    const auto score = [&](const TileKeys<type, D>& tile, uint32_t page) {
      const PageLogs logs = page_logs<type, D>(tile, q, a, keys - page * kPageTokens);
      if (lane >= 4) return;
      const size_t out = size_t{head + query} * a.capacity + page;
      for (uint32_t i = 0; i < 2 && query + i < group; ++i) {
        a.logs[out + i * a.capacity] = logs.sum[i];
        if (a.largest) peaks_of(a)[out + i * a.capacity] = logs.most[i];
      }
    };
    for (uint32_t page = split * kWarps + threadIdx.x / 32; page * kPageTokens < keys;
         page += kAtOnce * stride) {
      const TileKeys<type, D> tile(key_tile(a.kv, pages[page], kv_head));
      const uint32_t next = page + stride;
      if (kAtOnce == 1 || next * kPageTokens >= keys) {
        score(tile, page);
        continue;
      }
      const TileKeys<type, D> next_tile(key_tile(a.kv, pages[next], kv_head));
      score(tile, page);
      score(next_tile, next);
    }
  }
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

// Shares of a KV head whose pages are scored. A block; heads: the group's at least, which are read
// side by side.
template <uint32_t heads>
__device__ void share_pages(const WholeSharesArgs& a, uint32_t row, uint32_t kv_head) {
  __shared__ LogSum warps[heads][kShareWarps];
  const uint32_t group = a.n_head / a.kv.n_kv_head, lane = threadIdx.x % 32;
  const auto pages = static_cast<uint32_t>(a.positions[row]) / kPageTokens + 1;
  const size_t head = size_t{row * a.n_head + kv_head * group} * a.capacity;
  const float *logs = a.logs + head, *peaks = peaks_of(a) + head;
  const auto at = [&](uint32_t i, uint32_t page) {
    return size_t{min(i, group - 1)} * a.capacity + page;
  };
  LogSum sums[heads];
  for (uint32_t page = threadIdx.x; page < pages; page += kShareThreads) {
    float own[heads];
#pragma unroll
    for (uint32_t i = 0; i < heads; ++i) own[i] = logs[at(i, page)];
#pragma unroll
    for (uint32_t i = 0; i < heads; ++i) sums[i].add(own[i], 1.0f);
  }
#pragma unroll
  for (uint32_t i = 0; i < heads; ++i) {
    sums[i].add_lanes();
    if (lane == 0) warps[i][threadIdx.x / 32] = sums[i];
  }
  __syncthreads();
  float totals[heads];
#pragma unroll
  for (uint32_t i = 0; i < heads; ++i) {
    LogSum all = warps[i][lane];
    all.add_lanes();
    totals[i] = all.most + log2f(all.sum);
  }
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
    const __grid_constant__ WholeSharesArgs a, const __grid_constant__ TopPagesArgs choice) {
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t row = blockIdx.x / a.kv.n_kv_head;
  if (!has_turn(a.turns, a.positions[row])) return;
  share_pages<heads>(a, row, blockIdx.x % a.kv.n_kv_head);
  if constexpr (chooses) {
    __shared__ __align__(16) top::Shared s;
    __syncthreads();
    top::choose_list(choice, blockIdx.x, s);
  }
}

}  // namespace

cudaError_t whole_shares(const WholeSharesArgs& args, const TopPagesArgs* choice,
                         cudaStream_t stream) {
  const uint32_t lists = args.rows * args.kv.n_kv_head;
  if (lists == 0) return cudaSuccess;
  const uint32_t group = args.n_head / args.kv.n_kv_head;
  if (group < 1 || group > kMaxGroup) return cudaErrorNotSupported;
  constexpr uint32_t kBlocks = 2;  // of a multiprocessor, which has room for so many
  const uint32_t most = (args.capacity + kWarps - 1) / kWarps;
  const uint32_t splits =
      std::clamp(device_limits().multiprocessors * kBlocks / lists, 1u, std::max(most, 1u));
  const cudaError_t error = with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    return launch_overlapped(score_kernel<type, dim>, dim3(lists * splits), kThreads, stream, args,
                             splits);
  });
  if (error != cudaSuccess) return error;
  constexpr uint32_t kFew = 4;
  const auto share = [&](auto kernel) {
    return launch_overlapped(kernel, dim3(lists), kShareThreads, stream, args,
                             choice != nullptr ? *choice : TopPagesArgs());
  };
  if (choice == nullptr) return share(share_kernel<false, kMaxGroup>);
  return group <= kFew ? share(share_kernel<true, kFew>) : share(share_kernel<true, kMaxGroup>);
}

}  // namespace reprise::kernels::cuda

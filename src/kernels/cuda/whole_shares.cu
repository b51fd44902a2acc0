// What every page of a sequence gets of a decode row's attention: a pass over keys alone.
#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/page_keys.cuh"
#include "kernels/cuda/page_shares.h"
#include "kernels/cuda/row_turns.cuh"
#include "kernels/cuda/share_history.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kWarps = 8, kThreads = kWarps * 32;
constexpr uint32_t kMaxGroup = 16;

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

// Warps of the blocks of a KV head take pages in turn.
template <KvType type, uint32_t D>
__device__ void score_pages_of(const WholeSharesArgs& a, uint32_t row, uint32_t kv_head,
                               uint32_t split, uint32_t splits) {
  const uint32_t group = a.n_head / a.kv.n_kv_head, lane = threadIdx.x % 32;
  const uint32_t head = row * a.n_head + kv_head * group;
  const auto keys = static_cast<uint32_t>(a.positions[row]) + 1;
  const uint32_t* pages = a.pages + (a.one_table ? 0 : size_t{row} * a.capacity);
  for (uint32_t start = 0; start < group; start += 8) {
    EightQueries<type, D> q;
    q.load(a.q + size_t{head + min(start + EightQueries<type, D>::lane_query(), group - 1)} * D);
    for (uint32_t page = split * kWarps + threadIdx.x / 32; page * kPageTokens < keys;
         page += splits * kWarps) {
      const TileKeys<type, D> tile(key_tile(a.kv, pages[page], kv_head));
      const PageLogs logs = page_logs<type, D>(tile, q, a, keys - page * kPageTokens);
      const uint32_t query = start + lane * 2;
      if (lane >= 4) continue;
      const size_t out = size_t{head + query} * a.capacity + page;
      for (uint32_t i = 0; i < 2 && query + i < group; ++i) {
        a.logs[out + i * a.capacity] = logs.sum[i];
        if (a.largest) peaks_of(a)[out + i * a.capacity] = logs.most[i];
      }
    }
  }
}

// log2 of the sum of 2^logs over the block's threads.
__device__ float log_sum_of_block(float most, float sum, float2* warps) {
  const auto join = [&](float other_most, float other_sum) {
    const float high = fmaxf(most, other_most);
    sum =
        high == -INFINITY ? 0.0f : sum * exp2f(most - high) + other_sum * exp2f(other_most - high);
    most = high;
  };
  for (uint32_t mask = 1; mask < 32; mask *= 2) {
    join(__shfl_xor_sync(~0u, most, mask), __shfl_xor_sync(~0u, sum, mask));
  }
  __syncthreads();  // what warps hold was read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = {most, sum};
  __syncthreads();
  most = -INFINITY, sum = 0.0f;
  for (uint32_t i = 0; i < kWarps; ++i) join(warps[i].x, warps[i].y);
  return most + log2f(sum);
}

// Shares of a KV head, once all its pages are scored.
__device__ void share_pages(const WholeSharesArgs& a, uint32_t row, uint32_t kv_head) {
  __shared__ float2 warps[kWarps];
  const uint32_t group = a.n_head / a.kv.n_kv_head;
  const auto pages = static_cast<uint32_t>(a.positions[row]) / kPageTokens + 1;
  const size_t head = size_t{row * a.n_head + kv_head * group} * a.capacity;
  const float *logs = a.logs + head, *peaks = peaks_of(a) + head;
  float totals[kMaxGroup];
#pragma unroll
  for (uint32_t i = 0; i < kMaxGroup; ++i) {
    if (i >= group) break;
    float most = -INFINITY, sum = 0.0f;
    for (uint32_t page = threadIdx.x; page < pages; page += kThreads) {
      const float log = __ldcg(logs + size_t{i} * a.capacity + page), high = fmaxf(most, log);
      sum = sum * exp2f(most - high) + exp2f(log - high);
      most = high;
    }
    totals[i] = log_sum_of_block(most, sum, warps);
  }
  const size_t own = a.averages != nullptr ? size_t{a.slots[row]} * a.kv.n_kv_head + kv_head : 0;
  float* averages = a.averages != nullptr ? a.averages + own * a.capacity : nullptr;
  float* shares = a.shares + (size_t{row} * a.kv.n_kv_head + kv_head) * a.capacity;
  for (uint32_t page = threadIdx.x; page < pages; page += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < kMaxGroup; ++i) {
      if (i >= group) break;
      sum += exp2f(__ldcg(peaks + size_t{i} * a.capacity + page) - totals[i]);
    }
    const float share = sum / static_cast<float>(group);
    shares[page] = share;
    if (averages == nullptr) continue;
    averages[page] = a.factor * averages[page] + (1.0f - a.factor) * share;
  }
  if (a.history.rows == nullptr) return;
  float* to = history_row(a.history, own, a.positions[row], a.capacity);
  for (uint32_t page = threadIdx.x; page < a.capacity; page += kThreads) {
    to[page] = page < pages ? history_value(a.history, shares[page]) : 0.0f;
  }
}

template <KvType type, uint32_t D>
__global__ __launch_bounds__(kThreads) void whole_kernel(const __grid_constant__ WholeSharesArgs a,
                                                         uint32_t splits) {
  __shared__ bool last;
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t list = blockIdx.x / splits, split = blockIdx.x % splits;
  const uint32_t row = list / a.kv.n_kv_head, kv_head = list % a.kv.n_kv_head;
  const bool due = has_turn(a.turns, a.positions[row]);
  if (a.score_rows != nullptr && kv_head == 0 && split == 0 && threadIdx.x == 0) {
    a.score_rows[row] = due ? a.shares_row + row : a.averages_row + a.slots[row];
  }
  if (!due) return;
  score_pages_of<type, D>(a, row, kv_head, split, splits);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(a.arrived + list, splits - 1) == splits - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  share_pages(a, row, kv_head);
}

}  // namespace

cudaError_t whole_shares(const WholeSharesArgs& args, cudaStream_t stream) {
  const uint32_t lists = args.rows * args.kv.n_kv_head;
  if (lists == 0) return cudaSuccess;
  const uint32_t group = args.n_head / args.kv.n_kv_head;
  if (group < 1 || group > kMaxGroup) return cudaErrorNotSupported;
  constexpr uint32_t kBlocks = 4;  // of a multiprocessor, while there is work
  const uint32_t most = (args.capacity + kWarps - 1) / kWarps;
  const uint32_t splits =
      std::clamp(device_limits().multiprocessors * kBlocks / lists, 1u, std::max(most, 1u));
  return with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    return launch_overlapped(whole_kernel<type, dim>, dim3(lists * splits), kThreads, stream, args,
                             splits);
  });
}

}  // namespace reprise::kernels::cuda

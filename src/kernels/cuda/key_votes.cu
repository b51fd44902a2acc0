// Attention probabilities of many rows, summed up by key.
#include "kernels/cuda/kept_tokens.cuh"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/page_keys.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kWarps = 4;

// A warp per page and KV head. Keys of the page are read once; rows come in eights.
template <KvType type, uint32_t D>
__global__ __launch_bounds__(kWarps * 32) void votes_kernel(const __grid_constant__ KeyVotesArgs a,
                                                            uint32_t side_pages, uint32_t pages) {
  const uint32_t unit = blockIdx.x * kWarps + threadIdx.x / 32, kv_head = blockIdx.y;
  if (unit >= pages) return;
  const uint32_t lane = threadIdx.x % 32, group = a.n_head / a.kv.n_kv_head;
  const bool is_side = unit < side_pages;
  const auto first_page = static_cast<uint32_t>(a.keys.begin) / kPageTokens;
  const uint32_t block = first_page + unit - side_pages;  // of an own page
  const uint32_t id = is_side ? a.keys.side_pages[unit] : a.keys.pages[block];
  const TileKeys<type, D> keys(key_tile(a.kv, id, kv_head));
  // Position of the lane's first token, and its number; side tokens stand before all rows.
  const int32_t position = is_side ? -16 : static_cast<int32_t>(block * kPageTokens + lane / 4);
  const int32_t number = is_side ? static_cast<int32_t>(unit * kPageTokens + lane / 4)
                                 : a.keys.side + position - a.keys.begin;
  for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    float sums[2] = {};
    for (uint32_t start = 0; start < a.rows; start += 8) {
      const uint32_t mine = min(start + EightQueries<type, D>::lane_query(), a.rows - 1);
      EightQueries<type, D> q;
      q.load(a.q + (size_t{mine} * a.n_head + head) * D);
      float logits[4];
      keys.multiply_by(q, logits);
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = start + lane % 4 * 2 + i % 2;
        const int32_t key = position + static_cast<int32_t>(i / 2 * 8);
        if (row >= a.rows || key > a.first + static_cast<int32_t>(row)) continue;
        const float total = a.lse[size_t{row} * a.n_head + head] * kLog2OfE;
        sums[i / 2] += exp2_fast(scaled_logit(logits[i], a.scale, a.soft_cap) - total);
      }
    }
    for (uint32_t half = 0; half < 2; ++half) {
      for (uint32_t mask = 1; mask < 4; mask *= 2) {
        sums[half] += __shfl_xor_sync(~0u, sums[half], mask);
      }
      const int32_t key = number + static_cast<int32_t>(8 * half);
      const bool there = is_side
                             ? key < a.keys.side
                             : key >= a.keys.side && key < static_cast<int32_t>(key_count(a.keys));
      if (lane % 4 == 0 && there) a.votes[size_t{head} * a.stride + key] = sums[half];
    }
  }
}

}  // namespace

cudaError_t key_votes(const KeyVotesArgs& args, cudaStream_t stream) {
  const KeptKeys& keys = args.keys;
  const auto side = (static_cast<uint32_t>(keys.side) + kPageTokens - 1) / kPageTokens;
  const auto begin = static_cast<uint32_t>(keys.begin), end = static_cast<uint32_t>(keys.end);
  const uint32_t pages = side + (end + kPageTokens - 1) / kPageTokens - begin / kPageTokens;
  if (pages == 0 || args.rows == 0) return cudaSuccess;
  const dim3 grid((pages + kWarps - 1) / kWarps, args.kv.n_kv_head);
  return with_kv_shape(args.kv.type, args.kv.head_dim, [&](auto type, auto dim) {
    votes_kernel<type, dim><<<grid, kWarps * 32, 0, stream>>>(args, side, pages);
    return cudaGetLastError();
  });
}

}  // namespace reprise::kernels::cuda

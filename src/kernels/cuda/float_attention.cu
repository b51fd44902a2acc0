#include <cmath>

#include "kernels/cuda/float_attention.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_load.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kMaxHeadDim = 256, kWarps = 16, kAtOnce = 4;

// What a warp has read of a row's keys. A lane has dimensions 64 i + 2 l and the next.
template <int kPairs>
struct Sum {
  float base = -INFINITY, total = 0.0f;  // of exp(logit - base)
  float2 values[kPairs] = {};

  __device__ void raise(float to) {
    if (to <= base) return;
    const float factor = base == -INFINITY ? 0.0f : expf(base - to);
    base = to;
    total *= factor;
    for (float2& two : values) two = {two.x * factor, two.y * factor};
  }
};

template <int kPairs>
__device__ float2 pair_of(const PagedKv& kv, const unsigned char* tile, uint32_t token, int i) {
  const uint32_t dim = 64 * i + threadIdx.x % 32 * 2;
  return dim < kv.head_dim ? load_two(kv.type, tile, kv.head_dim, token, dim) : float2{};
}

// Tokens [first, end) of a page, at least one; some at once, whose sums do not wait for each other.
template <int kPairs>
__device__ void attend_page(const FloatAttentionArgs& a, const unsigned char* keys,
                            const float2 (&q)[kPairs], uint32_t first, uint32_t end,
                            Sum<kPairs>& sum) {
  const unsigned char* values = keys + tile_bytes(a.kv.type, a.kv.head_dim);
  for (uint32_t token = first; token < end; token += kAtOnce) {
    float logits[kAtOnce], top = -INFINITY;
#pragma unroll
    for (uint32_t t = 0; t < kAtOnce; ++t) {
      logits[t] = -INFINITY;
      if (token + t >= end) continue;
      float product = 0.0f;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 key = pair_of<kPairs>(a.kv, keys, token + t, i);
        product += q[i].x * key.x + q[i].y * key.y;
      }
      const float logit = warp_sum(product) * a.scale;
      logits[t] = a.soft_cap > 0.0f ? a.soft_cap * tanhf(logit / a.soft_cap) : logit;
      top = fmaxf(top, logits[t]);
    }
    sum.raise(top);
#pragma unroll
    for (uint32_t t = 0; t < kAtOnce; ++t) {
      if (token + t >= end) continue;
      const float weight = expf(logits[t] - sum.base);
      sum.total += weight;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 value = pair_of<kPairs>(a.kv, values, token + t, i);
        sum.values[i].x += weight * value.x;
        sum.values[i].y += weight * value.y;
      }
    }
  }
}

// Of the warps, in their order.
template <int kPairs>
__device__ void merge(const FloatAttentionArgs& a, const Sum<kPairs>& own, float* out) {
  __shared__ Sum<kPairs> sums[kWarps][32];
  const uint32_t lane = threadIdx.x % 32;
  sums[threadIdx.x / 32][lane] = own;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  Sum<kPairs> all = own;
  for (uint32_t warp = 1; warp < kWarps; ++warp) {
    const Sum<kPairs>& other = sums[warp][lane];
    if (other.base == -INFINITY) continue;
    all.raise(other.base);
    const float weight = expf(other.base - all.base);
    all.total += other.total * weight;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      all.values[i].x += other.values[i].x * weight;
      all.values[i].y += other.values[i].y * weight;
    }
  }
  const float inverse = all.total > 0.0f ? 1.0f / all.total : 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const uint32_t dim = 64 * i + lane * 2;
    if (dim >= a.kv.head_dim) break;
    *reinterpret_cast<float2*>(out + dim) = {all.values[i].x * inverse, all.values[i].y * inverse};
  }
}

// A block per row and query head; its warps take pages in turns.
template <int kPairs>
__global__ __launch_bounds__(kWarps *
                             32) void attend_kernel(const __grid_constant__ FloatAttentionArgs a) {
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t row = blockIdx.x / a.n_head, head = blockIdx.x % a.n_head;
  const uint32_t kv_head = head / (a.n_head / a.kv.n_kv_head);
  const size_t at = size_t{blockIdx.x} * a.kv.head_dim;
  float2 q[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const uint32_t dim = 64 * i + threadIdx.x % 32 * 2;
    q[i] = dim < a.kv.head_dim ? *reinterpret_cast<const float2*>(a.q + at + dim) : float2{};
  }
  const int32_t end = a.positions[row] + 1;
  const int32_t first = a.window > 0 ? max(end - a.window, 0) : 0;
  const uint32_t* pages = a.pages + size_t{a.sequences[row]} * a.capacity;
  constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
  Sum<kPairs> sum;
  for (int32_t page = first / kTokens + static_cast<int32_t>(threadIdx.x / 32);
       page * kTokens < end; page += kWarps) {
    attend_page(a, key_tile(a.kv, pages[page], kv_head), q, max(first - page * kTokens, 0),
                min(end - page * kTokens, kTokens), sum);
  }
  merge(a, sum, a.out + at);
}

template <int kPairs>
cudaError_t launch(const FloatAttentionArgs& args, cudaStream_t stream) {
  return launch_overlapped(attend_kernel<kPairs>, dim3(args.rows * args.n_head), kWarps * 32,
                           stream, args);
}

}  // namespace

cudaError_t float_attention(const FloatAttentionArgs& args, cudaStream_t stream) {
  const uint32_t head_dim = args.kv.head_dim, multiple = args.kv.type == KvType::kFP8 ? 32 : 8;
  if (head_dim > kMaxHeadDim || head_dim % multiple != 0) return cudaErrorNotSupported;
  if (args.rows == 0) return cudaSuccess;
  if (head_dim <= 64) return launch<1>(args, stream);
  return head_dim <= 128 ? launch<2>(args, stream) : launch<4>(args, stream);
}

}  // namespace reprise::kernels::cuda

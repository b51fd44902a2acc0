// A block per sequence and head; eight lanes share a key.
#include <cfloat>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kv_load.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/least_scores.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 1024, kLanes = 8, kMostPairs = 128;

// The sum of exp(logit - most).
struct Weight {
  float most = -FLT_MAX, sum = 0.0f;

  __device__ void add(const Weight& other) {
    const float larger = fmaxf(most, other.most);
    sum = sum * expf(most - larger) + other.sum * expf(other.most - larger);
    most = larger;
  }
};

__device__ float2 turned(float2 two, const PositionAngles& angles, int32_t position,
                         uint32_t pair) {
  if (pair >= angles.pairs) return two;
  const auto row = static_cast<size_t>(position + static_cast<int32_t>(kPageTokens) - 1);
  const float2 by = reinterpret_cast<const float2*>(angles.rows)[row * angles.pairs + pair];
  return {two.x * by.x - two.y * by.y, two.x * by.y + two.y * by.x};
}

// Of the i-th of the keys that are always read; the same in all lanes of a key.
__device__ float logit_of(const LeastScoresArgs& a, KeyRange32 middle, uint32_t sequence,
                          uint32_t head, int32_t i, const float2* q) {
  const int32_t key = i < middle.begin ? i : middle.end + i - middle.begin;
  const uint32_t token = static_cast<uint32_t>(key) % kPageTokens;
  const uint32_t page =
      a.pages[size_t{sequence} * a.capacity + static_cast<uint32_t>(key) / kPageTokens];
  const unsigned char* tile = key_tile(a.kv, page, head / (a.n_head / a.kv.n_kv_head));
  float sum = 0.0f;
  for (uint32_t pair = threadIdx.x % kLanes; pair < a.kv.head_dim / 2; pair += kLanes) {
    const float2 two =
        turned(load_two(a.kv.type, tile, a.kv.head_dim, token, 2 * pair), a.angles, i, pair);
    sum += two.x * q[pair].x + two.y * q[pair].y;
  }
  for (uint32_t mask = 1; mask < kLanes; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  return sum * a.scale;
}

__global__ __launch_bounds__(kThreads) void least_kernel(
    const __grid_constant__ LeastScoresArgs a) {
  __shared__ float2 q[kMostPairs];
  __shared__ Weight warps[kThreads / 32];
  wait_for_kernels_before();
  const uint32_t head = blockIdx.x, sequence = blockIdx.y;
  const KeyRange32 middle = middle_of(a.middle, a.positions[sequence], 1);
  if (middle.begin >= middle.end) return;
  const int32_t count = middle.begin + a.positions[sequence] + 1 - middle.end;
  const size_t at = size_t{sequence} * a.n_head + head;
  for (uint32_t pair = threadIdx.x; pair < a.kv.head_dim / 2; pair += kThreads) {
    const float2* from = reinterpret_cast<const float2*>(a.q + at * a.kv.head_dim);
    q[pair] = turned(from[pair], a.angles, count - 1, pair);
  }
  __syncthreads();
  Weight weight;
  constexpr auto kKeys = static_cast<int32_t>(kThreads / kLanes);
  for (int32_t first = 0; first < count; first += kKeys) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x / kLanes);
    const float logit = logit_of(a, middle, sequence, head, min(i, count - 1), q);
    if (i < count) weight.add({logit, 1.0f});
  }
  for (uint32_t mask = kLanes; mask < 32; mask *= 2) {
    weight.add({__shfl_xor_sync(~0u, weight.most, mask), __shfl_xor_sync(~0u, weight.sum, mask)});
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = weight;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (uint32_t warp = 1; warp < kThreads / 32; ++warp) weight.add(warps[warp]);
  a.least[at] = (weight.most + logf(weight.sum * a.share)) / a.scale;
}

}  // namespace

cudaError_t least_scores(const LeastScoresArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  if (args.kv.head_dim > 2 * kMostPairs) return cudaErrorNotSupported;
  return launch_overlapped(least_kernel, dim3(args.n_head, args.batch), kThreads, stream, args);
}

}  // namespace reprise::kernels::cuda

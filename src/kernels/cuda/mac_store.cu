// Entries that rows of a prompt leave in a ring of MAC-Attention, and entries that are forgotten.
#include <cmath>

#include "kernels/cuda/mac_ring.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 128, kForgetThreads = 256;

// Of the attention of a row and head, which the keys of its entry hold.
__device__ inline float share_of(const MacSeedArgs& a, size_t at) {
  return expf(fminf(0.0f, a.lse[at] - a.full_lse[at]));
}

// What the peak of a head is at a row of a prompt, given all shares up to it. All lanes of a warp.
__device__ float peak_at(const MacSeedArgs& a, uint32_t row, uint32_t head, size_t ring) {
  const float fade = log2f(1.0f - 1.0f / static_cast<float>(a.ring.window));
  float peak = 0.0f;
  for (uint32_t i = threadIdx.x % 32; i <= row; i += 32) {
    const size_t at = size_t{a.rows.first + i} * a.n_head + head;
    peak = fmaxf(peak, share_of(a, at) * exp2f(fade * static_cast<float>(row - i)));
  }
  for (int mask = 16; mask > 0; mask /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, mask));
  const int32_t before = a.rows.position - 1;
  if (!a.follows || before < 0) return peak;
  const uint32_t group = a.n_head / a.n_kv_head;
  const size_t slot = ring * a.ring.window + static_cast<uint32_t>(before) % a.ring.window;
  const MacEntry& last = a.ring.entries[slot * group + head % group];
  if (last.position != before) return peak;
  return fmaxf(peak, last.peak * exp2f(fade * static_cast<float>(row + 1)));
}

// A block per row and KV head.
template <bool coded>
__global__ __launch_bounds__(kThreads) void seed_kernel(const __grid_constant__ MacSeedArgs a) {
  const uint32_t row = blockIdx.x / a.n_kv_head, kv_head = blockIdx.x % a.n_kv_head;
  const uint32_t group = a.n_head / a.n_kv_head, size = group * a.head_dim;
  const int32_t position = a.rows.position + static_cast<int32_t>(row);
  const size_t number = size_t{a.number} * a.ring.layers;
  const size_t ring = number * a.n_kv_head + kv_head;
  const size_t slot = ring * a.ring.window + static_cast<uint32_t>(position) % a.ring.window;
  const size_t head = size_t{a.rows.first + row} * a.n_head + kv_head * group;
  bool finite = true;
  for (uint32_t i = threadIdx.x * 2; i < size; i += kThreads * 2) {
    const auto q = *reinterpret_cast<const float2*>(a.q_plain + head * a.head_dim + i);
    const auto out = *reinterpret_cast<const float2*>(a.out + head * a.head_dim + i);
    finite = finite && isfinite(q.x) && isfinite(q.y) && isfinite(out.x) && isfinite(out.y);
    mac::store_query<coded>(a.ring, slot * size + i, q);
    mac::store_result<coded>(a.ring, slot * size + i, out);
  }
  finite = __syncthreads_and(finite ? 1 : 0) != 0;
  if (!finite && threadIdx.x == 0) atomicAdd(&a.ring.counters[number].nonfinite, 1ull);
  for (uint32_t i = threadIdx.x / 32; i < group; i += kThreads / 32) {
    const float peak = peak_at(a, row, kv_head * group + i, ring);
    if (threadIdx.x % 32 != 0) continue;
    a.ring.entries[slot * group + i] = {
        finite ? position : -1, position, a.lse[head + i], share_of(a, head + i), 0.0f, peak, 0};
  }
}

__global__ __launch_bounds__(kForgetThreads) void forget_kernel(MacEntry* entries, size_t count,
                                                                int32_t position) {
  const size_t i = size_t{blockIdx.x} * kForgetThreads + threadIdx.x;
  if (i < count && entries[i].position >= position) entries[i].position = -1;
}

}  // namespace

cudaError_t mac_seed(const MacSeedArgs& args, cudaStream_t stream) {
  if (args.rows.count == 0) return cudaSuccess;
  const uint32_t blocks = args.rows.count * args.n_kv_head;
  if (args.ring.coded()) {
    if (args.head_dim % mac::kScaled != 0) return cudaErrorNotSupported;
    seed_kernel<true><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    seed_kernel<false><<<blocks, kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

cudaError_t mac_forget(MacEntry* entries, size_t count, int32_t position, cudaStream_t stream) {
  const auto blocks = static_cast<uint32_t>((count + kForgetThreads - 1) / kForgetThreads);
  forget_kernel<<<blocks, kForgetThreads, 0, stream>>>(entries, count, position);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

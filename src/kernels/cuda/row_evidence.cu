#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_evidence.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 128;

__device__ uint16_t& heads_of(RowEvidence& state, int32_t row) {
  return state.heads[row % RowEvidence::kRows];
}

// Rows [begin, end) are ones at which no head stood out. All threads of the block.
__device__ void clear_rows(RowEvidence& state, int32_t begin, int32_t end) {
  begin = max(begin, end - RowEvidence::kRows);
  for (int32_t row = begin + static_cast<int32_t>(threadIdx.x); row < end; row += kThreads) {
    heads_of(state, row) = 0;
  }
}

// A block per sequence.
__global__ __launch_bounds__(kThreads) void begin_kernel(RowEvidence* const* states,
                                                         const int32_t* positions,
                                                         EvidenceRules rules) {
  __shared__ float sums[kThreads / 32];
  allow_next_kernel();
  wait_for_kernels_before();
  const int32_t row = positions[blockIdx.x];
  if (row < 0 || states[blockIdx.x] == nullptr) return;
  RowEvidence& state = *states[blockIdx.x];
  const int32_t last = state.row;
  clear_rows(state, last + 1, row);
  if (threadIdx.x == 0 && last >= 0) {
    heads_of(state, last) = static_cast<uint16_t>(state.sums[rules.turns % 3]);
  }
  __syncthreads();
  float sum = 0.0f;
  for (int32_t back = static_cast<int32_t>(threadIdx.x) + 1; back < rules.reach; back += kThreads) {
    if (back > row) break;
    sum += powf(rules.fade, static_cast<float>(back)) * heads_of(state, row - back);
  }
  for (uint32_t step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  state.row = row;
  state.past = 0.0f;
  for (const float each : sums) state.past += each;
  for (uint32_t& each : state.sums) each = 0;
}

__global__ __launch_bounds__(kThreads) void forget_kernel(RowEvidence* forgetting, int32_t length,
                                                          EvidenceRules rules) {
  RowEvidence& state = *forgetting;
  const int32_t last = state.row;
  if (last < length) return;
  __syncthreads();
  const bool known = length > 0 && last - length + 1 < RowEvidence::kRows;
  const uint16_t heads = known ? heads_of(state, length - 1) : 0;
  clear_rows(state, length, last);
  if (threadIdx.x != 0) return;
  state.row = length - 1;
  state.sums[rules.turns % 3] = heads;
}

}  // namespace

cudaError_t begin_evidence(RowEvidence* const* states, const int32_t* positions, uint32_t batch,
                           const EvidenceRules& rules, cudaStream_t stream) {
  if (batch == 0) return cudaSuccess;
  if (rules.reach > RowEvidence::kRows) return cudaErrorInvalidValue;
  return launch_overlapped(begin_kernel, dim3(batch), kThreads, stream, states, positions, rules);
}

cudaError_t forget_evidence(RowEvidence* state, int32_t length, const EvidenceRules& rules,
                            cudaStream_t stream) {
  forget_kernel<<<1, kThreads, 0, stream>>>(state, length, rules);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

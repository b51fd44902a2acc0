#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kept_scans.cuh"
#include "kernels/cuda/launch.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 128;

struct Params {
  KeptScansArgs kept;
  const int32_t* positions;
  MiddleKeys middle;
  VoteTables votes;
};

__device__ bool scans(const KeptScan& kept, const KeptScansArgs& a, int32_t row, int32_t end) {
  const int32_t scanned = static_cast<int32_t>(*kept.row) - 1;
  const bool serves = static_cast<int32_t>(*kept.prompt_end) == end && scanned >= end && row >= end;
  const auto turn = [&](int32_t at) { return (at - end + static_cast<int32_t>(a.layer)) / a.rows; };
  return !serves || turn(scanned) != turn(row);
}

// One block per sequence, a thread for each key.
__global__ __launch_bounds__(kThreads) void begin_kernel(const __grid_constant__ Params p) {
  wait_for_kernels_before();
  const uint32_t sequence = blockIdx.x;
  const int32_t row = p.positions[sequence];
  const KeyRange32 middle = middle_of(p.middle, row, 1);
  bool own = row < 0 || p.kept.states[sequence] == nullptr || middle.begin >= middle.end;
  if (!own) {
    own = scans(KeptScan(p.kept, sequence), p.kept, row, p.kept.prompt_ends[sequence]);
  }
  if (threadIdx.x == 0) p.kept.scanning[sequence] = own ? row : -1;
  if (own) return;
  const KeptScan kept(p.kept, sequence);
  const size_t at = size_t{sequence} * p.votes.slots;
  const uint32_t count = *kept.count;
  for (uint32_t c = threadIdx.x; c < count; c += kThreads) {
    uint32_t slot = first_vote_slot(p.votes, kept.keys[c]);
    while (atomicCAS(p.votes.keys + at + slot, 0u, kept.keys[c]) != 0) {
      slot = (slot + 1) & (p.votes.slots - 1);
    }
    p.votes.used[at + c] = slot;
    p.votes.votes[at + slot] = kept.votes[c];
    p.votes.best[at + slot] = kept.best[c];
  }
  if (threadIdx.x == 0) p.votes.count[sequence] = count;
  for (uint32_t head = threadIdx.x; head < p.kept.shape.heads; head += kThreads) {
    p.kept.leaders[size_t{sequence} * p.kept.shape.heads + head] = kept.leaders[head];
  }
}

__global__ void forget_kernel(uint32_t* state, KeptShape shape, int32_t length) {
  for (uint32_t layer = threadIdx.x; layer < shape.layers; layer += kThreads) {
    uint32_t& row = state[layer * shape.layer_words()];
    if (row > static_cast<uint32_t>(length)) row = 0;
  }
}

}  // namespace

cudaError_t begin_scans(const KeptScansArgs& args, const int32_t* positions, uint32_t batch,
                        const MiddleKeys& middle, const VoteTables& votes, cudaStream_t stream) {
  if (batch == 0) return cudaSuccess;
  const Params params = {args, positions, middle, votes};
  return launch_overlapped(begin_kernel, dim3(batch), kThreads, stream, params);
}

cudaError_t forget_scans(uint32_t* state, const KeptShape& shape, int32_t length,
                         cudaStream_t stream) {
  forget_kernel<<<1, kThreads, 0, stream>>>(state, shape, length);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

// Two launches, of a block per slice of a row. The first penalises and finds the largest logit of a
// slice. In the second, one block of a greedy row compares the slices; all blocks of another row
// add up candidates by their distance from the largest logit, and the last of them chooses.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/sampling_params.cuh"
#include "kernels/cuda/sampling_select.cuh"

namespace reprise::kernels::cuda {
namespace {

using namespace sampling;

__device__ bool penalizes(const SampleRule& rule) {
  return rule.repeat_penalty != 1.0f && rule.repeat_window > 0;
}

// Once each of the window's tokens that lie in the slice. All threads.
__device__ void penalize(const Params& p, const SampleRule& rule, uint32_t row, uint32_t first) {
  __shared__ uint32_t seen[kMaxSlice / 32];
  static_assert(kMaxSlice / 32 == kThreads);
  seen[threadIdx.x] = 0;
  __syncthreads();
  const auto position = static_cast<uint32_t>(p.args.positions[row]);
  const uint32_t capacity = p.args.history_capacity;
  const uint32_t window = min(min(rule.repeat_window, capacity), position + 1);
  const int32_t* history = p.args.history + size_t{row} * capacity;
  for (uint32_t back = threadIdx.x; back < window; back += kThreads) {
    const auto token = static_cast<uint32_t>(history[(position - back) % capacity]);
    const uint32_t at = token - first;
    if (token < first || at >= p.slice || token >= p.args.vocab) continue;
    const uint32_t bit = 1u << at % 32;
    if ((atomicOr(&seen[at / 32], bit) & bit) != 0) continue;
    float& logit = p.logits(row)[token];
    logit = logit > 0.0f ? logit / rule.repeat_penalty : logit * rule.repeat_penalty;
  }
  __syncthreads();
}

__device__ Wide warp_max(Wide v) {
  for (int mask = 1; mask < 32; mask *= 2) v = max(v, __shfl_xor_sync(~0u, v, mask));
  return v;
}

__device__ float warp_min(float v) {
  for (int mask = 1; mask < 32; mask *= 2) v = fminf(v, __shfl_xor_sync(~0u, v, mask));
  return v;
}

__device__ Partial merge(Partial a, const Partial& b) {
  return {max(a.first, b.first), fminf(a.lowest, b.lowest)};
}

// Of a warp, in all its lanes.
__device__ Partial warp_merge(const Partial& a) { return {warp_max(a.first), warp_min(a.lowest)}; }

constexpr Partial kNothing = {0, INFINITY};

__global__ __launch_bounds__(kThreads) void scan_kernel(const __grid_constant__ Params p) {
  __shared__ Partial warps[kThreads / 32];
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t row = blockIdx.y, first = blockIdx.x * p.slice;
  const SampleRule rule = p.args.rules[row];
  if (p.args.positions[row] < 0) return;
  if (penalizes(rule)) penalize(p, rule, row, first);
  Partial own = kNothing;
  each_logit(p, row, first, p.end(first), [&](float logit, uint32_t token) {
    if (logit == logit) own = merge(own, {~order_key(logit, token), logit});
  });
  own = warp_merge(own);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x < 32) {
    own = warp_merge(warps[threadIdx.x]);
    if (threadIdx.x == 0) p.partials[row * p.splits + blockIdx.x] = own;
  }
  if (!(rule.temp > 0.0f)) return;
  Histogram& histogram = p.histograms[row];
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < kBins; i += p.splits * kThreads) {
    histogram.mass[i] = 0;
    histogram.count[i] = 0;
    if (i == 0) histogram.likely = histogram.arrived = 0;
  }
}

__device__ void publish(const SampleArgs& args, uint32_t row, uint32_t token) {
  const int32_t position = args.positions[row], chosen = static_cast<int32_t>(token);
  args.tokens[row] = chosen;
  const uint32_t next = (static_cast<uint32_t>(position) + 1) % args.history_capacity;
  args.history[size_t{row} * args.history_capacity + next] = chosen;
  if (args.advance) args.positions[row] = position + 1;
  if (args.host_tokens == nullptr) return;
  __threadfence_system();  // whoever sees the id sees the rest
  *static_cast<volatile int32_t*>(args.host_tokens + 2 * row + position % 2) = chosen;
  __threadfence_system();
}

// Adds the slice to the row's histogram; whether this block is the row's last to do so.
__device__ bool add_slice(Shared& s, const Params& p, uint32_t row, const Likelihood& likelihood,
                          float min_p) {
  Histogram& histogram = p.histograms[row];
  const uint32_t first = blockIdx.x * p.slice;
  clear_bins(s);
  Wide likely = 0;
  each_logit(p, row, first, p.end(first), [&](float logit, uint32_t) {
    const float probability = likelihood.probability(logit);
    const Wide mass = Likelihood::mass(probability);
    if (mass == 0) return;
    add_to_bin(s, likelihood.bin(logit), mass);
    if (probability >= min_p) likely += mass;
  });
  for (int mask = 1; mask < 32; mask *= 2) likely += __shfl_xor_sync(~0u, likely, mask);
  if (threadIdx.x % 32 == 0 && likely > 0) atomicAdd(&histogram.likely, likely);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) {
    if (s.count[i] == 0) continue;
    atomicAdd(&histogram.mass[i], s.mass[i]);
    atomicAdd(&histogram.count[i], s.count[i]);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) s.last = atomicAdd(&histogram.arrived, 1u) + 1 == p.splits;
  __syncthreads();
  __threadfence();
  return s.last;
}

// Those that are kept are always the first so many: their mass says all.
__device__ uint32_t draw(Shared& s, const Params& p, uint32_t row, const SampleRule& rule,
                         const Likelihood& likelihood) {
  Candidates candidates(s, p, row, likelihood, rule.top_k > 0 || rule.top_p < 1.0f);
  Found found;
  Wide kept = candidates.mass();
  if (rule.top_k > 0 && candidates.find(Measure::kCount, rule.top_k - 1, &found)) kept = found.mass;
  if (rule.top_p < 1.0f) {
    const double reached = ceil(static_cast<double>(rule.top_p) * static_cast<double>(kept));
    const Wide target = reached > 1.0 ? static_cast<Wide>(reached) - 1 : 0;
    if (candidates.find(Measure::kMass, target, &found)) kept = min(kept, found.mass);
  }
  kept = min(kept, __ldcg(&p.histograms[row].likely));
  kept = max(kept, static_cast<Wide>(kUnits));  // the first always stays
  const double random = uniform(rule.seed, static_cast<uint32_t>(p.args.positions[row]));
  const auto target = static_cast<Wide>(random * static_cast<double>(kept));
  candidates.find(Measure::kMass, min(target, kept - 1), &found);
  return found.token;
}

__global__ __launch_bounds__(kThreads) void choose_kernel(const __grid_constant__ Params p) {
  __shared__ Shared shared;
  allow_next_kernel();
  wait_for_kernels_before();
  const uint32_t row = blockIdx.y;
  if (p.args.positions[row] < 0) return;
  const SampleRule rule = p.args.rules[row];
  const bool greedy = !(rule.temp > 0.0f);
  if (greedy && (blockIdx.x > 0 || threadIdx.x >= 32)) return;
  Partial best = kNothing;
  for (uint32_t i = threadIdx.x % 32; i < p.splits; i += 32) {
    best = merge(best, p.partials[row * p.splits + i]);
  }
  best = warp_merge(best);
  const Wide first = ~best.first;
  if (greedy || best.first == 0) {
    const uint32_t token = best.first == 0 ? 0 : static_cast<uint32_t>(first);
    if (blockIdx.x == 0 && threadIdx.x == 0) publish(p.args, row, token);
    return;
  }
  const Likelihood likelihood(logit_of(first), best.lowest, rule.temp);
  if (!add_slice(shared, p, row, likelihood, rule.min_p)) return;
  const uint32_t token = draw(shared, p, row, rule, likelihood);
  if (threadIdx.x == 0) publish(p.args, row, token);
}

constexpr uint32_t kManyBlocks = 256;

uint32_t divide_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Slices are long where there are many rows, so that blocks are not too many.
uint32_t slice_of(uint32_t batch, uint32_t vocab) {
  const uint32_t strips = divide_up(vocab, kStrip);
  const uint64_t per_block = (uint64_t{strips} * batch + kManyBlocks - 1) / kManyBlocks;
  return kStrip * static_cast<uint32_t>(std::min<uint64_t>(per_block, kMaxSlice / kStrip));
}

}  // namespace

size_t sampling_workspace(uint32_t batch, uint32_t vocab) {
  return batch * (sizeof(Histogram) + divide_up(vocab, kStrip) * sizeof(Partial));
}

cudaError_t sample(const SampleArgs& args, cudaStream_t stream) {
  if (args.batch == 0) return cudaSuccess;
  if (args.vocab == 0) return cudaErrorInvalidValue;
  if (args.vocab > kMaxVocab) return cudaErrorNotSupported;
  Params p = {.args = args, .slice = slice_of(args.batch, args.vocab)};
  p.splits = divide_up(args.vocab, p.slice);
  p.histograms = static_cast<Histogram*>(args.workspace);
  p.partials = reinterpret_cast<Partial*>(p.histograms + args.batch);
  const dim3 grid(p.splits, args.batch);
  const cudaError_t status = launch_overlapped(scan_kernel, grid, kThreads, stream, p);
  return status != cudaSuccess ? status
                               : launch_overlapped(choose_kernel, grid, kThreads, stream, p);
}

}  // namespace reprise::kernels::cuda

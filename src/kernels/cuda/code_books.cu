// Codebooks: second moments of queries, and k-means of keys in the metric that they give. A block
// has one part of one KV head.
#include "kernels/cuda/code_metric.cuh"
#include "kernels/cuda/key_codes.h"
#include "kernels/cuda/kv_dispatch.cuh"
#include "kernels/cuda/kv_load.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 128, kWarps = kThreads / 32;
constexpr uint32_t kPoints = kTrainPages * kPageTokens, kOwn = kPoints / kThreads;
constexpr uint32_t kSumLanes = kThreads / kCodeEntries;  // that share a cluster
constexpr int32_t kNone = 1 << 30;

__global__ void moments_kernel(QueryMomentsArgs a) {
  const uint32_t head = blockIdx.x, part = threadIdx.x, group = a.n_head / a.shape.n_kv_head;
  const size_t at = (a.shape.heads(a.layer) + head) * a.shape.parts() + part;
  float* sums = a.moments + at * kMoments;
  float xx = sums[0], xy = sums[1], yy = sums[2];
#pragma unroll 8
  for (uint32_t i = 0; i < a.rows * group; ++i) {
    const size_t query = size_t{i / group} * a.n_head + head * group + i % group;
    const float2 q = __bfloat1622float2(
        *reinterpret_cast<const __nv_bfloat162*>(a.q + query * a.shape.head_dim + 2 * part));
    if (!isfinite(q.x * q.x + q.y * q.y)) continue;
    xx += q.x * q.x;
    xy += q.x * q.y;
    yy += q.y * q.y;
  }
  sums[0] = xx;
  sums[1] = xy;
  sums[2] = yy;
}

__device__ PartMetric metric_of(const float* moments) {
  const float trace = moments[0] + moments[2];
  if (!(trace > 0.0f) || !isfinite(trace)) return {};
  const float scale = 2.0f / trace;
  return {moments[0] * scale + kMetricPrior, moments[1] * scale, moments[2] * scale + kMetricPrior};
}

struct Shared {
  float2 points[kPoints];
  uint8_t nearest[kPoints];
  float2 centroids[kCodeEntries];
  Candidate candidates[kCodeEntries];
  double sums[kWarps];
  int32_t found, last;
};

// k-means over points, of which a thread has kOwn neighbours. All threads call every member.
class Clusters {
 public:
  __device__ Clusters(Shared& s, const PartMetric& metric, uint32_t points)
      : s_(s), metric_(metric), points_(points), first_(threadIdx.x * kOwn) {
    for (uint32_t i = 0; i < kOwn; ++i) {
      const float2 x = first_ + i < points ? s.points[first_ + i] : float2{};
      norms_[i] = dot(metric.times(x), x);
      distances_[i] = first_ + i < points ? INFINITY : 0.0f;
    }
  }

  // k-means++. draws: see TrainCodesArgs.
  __device__ void seed(uint32_t clusters, const uint64_t* draws) {
    auto chosen = static_cast<uint32_t>(draws[0] % points_);
    for (uint32_t cluster = 0; cluster < clusters; ++cluster) {
      const float2 centroid = s_.points[chosen];
      if (threadIdx.x == 0) s_.centroids[cluster] = centroid;
      if (cluster + 1 < clusters) chosen = draw(centroid, chosen, draws[cluster + 1]);
    }
    __syncthreads();
  }

  __device__ void improve(uint32_t clusters) {
    if (threadIdx.x < clusters) {
      s_.candidates[threadIdx.x] = candidate_of(metric_, s_.centroids[threadIdx.x]);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < points_; i += kThreads) {
      s_.nearest[i] = static_cast<uint8_t>(nearest(s_.candidates, clusters, s_.points[i]));
    }
    __syncthreads();
    const uint32_t cluster = threadIdx.x / kSumLanes;
    float3 sum = {};  // z: how many
    for (uint32_t i = threadIdx.x % kSumLanes; i < points_; i += kSumLanes) {
      if (s_.nearest[i] != cluster) continue;
      sum = {sum.x + s_.points[i].x, sum.y + s_.points[i].y, sum.z + 1.0f};
    }
    for (uint32_t mask = 1; mask < kSumLanes; mask *= 2) {
      sum = {sum.x + __shfl_xor_sync(~0u, sum.x, mask), sum.y + __shfl_xor_sync(~0u, sum.y, mask),
             sum.z + __shfl_xor_sync(~0u, sum.z, mask)};
    }
    if (threadIdx.x % kSumLanes == 0 && sum.z > 0.0f) {
      s_.centroids[cluster] = {sum.x / sum.z, sum.y / sum.z};
    }
    __syncthreads();
  }

 private:
  // Takes a centroid in and draws the next point with a probability proportional to its distance.
  __device__ uint32_t draw(float2 centroid, uint32_t chosen, uint64_t bits) {
    const Candidate candidate = candidate_of(metric_, centroid);
    double own = 0.0;
    for (uint32_t i = 0; i < kOwn; ++i) {
      if (first_ + i >= points_) break;
      const float product = dot(candidate.direction, s_.points[first_ + i]);
      const float distance = norms_[i] + 2.0f * candidate.half - 2.0f * product;
      distances_[i] = fminf(fmaxf(distance, 0.0f), distances_[i]);
      own += distances_[i];
    }
    double total = 0.0;
    sum_before(own, &total);
    own = 0.0;
    for (uint32_t i = 0; i < kOwn; ++i) {
      if (first_ + i == chosen) distances_[i] = 0.0f;
      own += distances_[i];
    }
    double before = sum_before(own, nullptr);
    const double left = static_cast<double>(bits >> 11) * 0x1p-53 * total;
    if (threadIdx.x == 0) {
      s_.found = kNone;
      s_.last = 0;
    }
    __syncthreads();
    for (uint32_t i = 0; i < kOwn; ++i) {
      if (!(distances_[i] > 0.0f)) continue;
      before += distances_[i];
      atomicMax(&s_.last, static_cast<int32_t>(first_ + i));
      if (left < before) atomicMin(&s_.found, static_cast<int32_t>(first_ + i));
    }
    __syncthreads();
    const auto next = static_cast<uint32_t>(s_.found < kNone ? s_.found : s_.last);
    __syncthreads();
    return next;
  }

  // Of what the threads before this one have.
  __device__ double sum_before(double own, double* total) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double sum = own;
    for (uint32_t step = 1; step < 32; step *= 2) {
      const double left = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += left;
    }
    if (lane == 31) s_.sums[warp] = sum;
    __syncthreads();
    double before = sum - own, all = 0.0;
    for (uint32_t i = 0; i < kWarps; ++i) {
      if (i < warp) before += s_.sums[i];
      all += s_.sums[i];
    }
    __syncthreads();
    if (total != nullptr) *total = all;
    return before;
  }

  Shared& s_;
  PartMetric metric_;
  uint32_t points_, first_;
  float norms_[kOwn], distances_[kOwn];
};

__global__ __launch_bounds__(kThreads) void train_kernel(const __grid_constant__ TrainCodesArgs a) {
  __shared__ Shared s;
  const uint32_t parts = a.shape.parts(), part = blockIdx.x % parts, head = blockIdx.x / parts;
  const size_t at = (a.shape.heads(a.layer) + head) * parts + part;
  const uint32_t points = a.pages.tokens;
  for (uint32_t i = threadIdx.x; i < points; i += kThreads) {
    const unsigned char* tile = key_tile(a.kv, a.pages.ids[i / kPageTokens], head);
    s.points[i] = load_two(a.kv.type, tile, a.shape.head_dim, i % kPageTokens, 2 * part);
  }
  const PartMetric metric = metric_of(a.moments + at * kMoments);
  __syncthreads();
  Clusters clusters(s, metric, points);
  clusters.seed(a.clusters, a.draws);
  for (uint32_t i = 0; i < a.iterations; ++i) clusters.improve(a.clusters);
  float* book = a.book + at * kBookPart;
  if (threadIdx.x < kCodeEntries) {
    const float2 centroid = s.centroids[threadIdx.x % a.clusters];
    book[threadIdx.x] = centroid.x;
    book[kCodeEntries + threadIdx.x] = centroid.y;
  }
  if (threadIdx.x == 0) {
    book[2 * kCodeEntries] = metric.xx;
    book[2 * kCodeEntries + 1] = metric.xy;
    book[2 * kCodeEntries + 2] = metric.yy;
  }
}

}  // namespace

cudaError_t add_query_moments(const QueryMomentsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  moments_kernel<<<args.shape.n_kv_head, args.shape.parts(), 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t train_codes(const TrainCodesArgs& args, cudaStream_t stream) {
  const bool fits = args.pages.tokens > 0 && args.pages.tokens <= kPoints && args.clusters > 0 &&
                    args.clusters <= kCodeEntries;
  if (!fits) return cudaErrorInvalidValue;
  train_kernel<<<args.shape.n_kv_head * args.shape.parts(), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise::kernels::cuda

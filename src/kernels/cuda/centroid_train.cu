// Spherical k-means of parts of queries. A block has one part of one KV head.
#include <cfloat>
#include <cmath>

#include "kernels/cuda/centroid_parts.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kOwn = kMostDirections / kThreads;  // neighbouring points of a thread
constexpr float kShortest = 1e-12f;                    // of a part that has a direction

template <int D>
struct Shared {
  float centroids[kMostCentroids * D];
  float closeness[kMostDirections];  // to the nearest centroid; of seeds: the distance
  uint8_t nearest[kMostDirections];
  double sums[kWarps];
  uint32_t found, last;
};

// Sum of x over the threads before this one; *total: over all. sums: [kWarps]
__device__ double sum_before(double x, double* sums, double* total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double sum = x;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const double left = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += left;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  double before = 0.0;
  *total = 0.0;
  for (uint32_t w = 0; w < kWarps; ++w) {
    if (w < warp) before += sums[w];
    *total += sums[w];
  }
  return before + sum - x;
}

// All threads of the block call every member.
template <int D>
class Directions {
 public:
  __device__ Directions(const TrainCentroidsArgs& a, Shared<D>& s)
      : a_(a),
        s_(s),
        clusters_(a.shape.centroids),
        points_(a.points + size_t{blockIdx.x} * kMostDirections * D) {}

  // Parts at unit length, those without a direction left out.
  __device__ void load() {
    const uint32_t group = a_.shape.group(), all = a_.rows * group;
    const uint32_t head = blockIdx.x / a_.shape.parts, part = blockIdx.x % a_.shape.parts;
    const auto read = [&](uint32_t point, float(&x)[D]) {
      const size_t query = size_t{point / group} * a_.shape.n_head + head * group + point % group;
      const __nv_bfloat16* q = a_.q + query * a_.shape.head_dim + part * D;
      float squares = 0.0f;
      for (int d = 0; d < D; ++d) {
        x[d] = __bfloat162float(q[d]);
        squares += x[d] * x[d];
      }
      const float norm = sqrtf(squares);
      return norm > kShortest && isfinite(norm) ? norm : 0.0f;
    };
    const uint32_t first = threadIdx.x * kOwn, end = min(all, first + kOwn);
    float x[D];
    uint32_t own = 0;
    for (uint32_t point = first; point < end; ++point) own += read(point, x) > 0.0f ? 1 : 0;
    double total = 0.0;
    auto to = static_cast<uint32_t>(sum_before(own, s_.sums, &total));
    for (uint32_t point = first; point < end; ++point) {
      const float norm = read(point, x);
      if (norm == 0.0f) continue;
      for (int d = 0; d < D; ++d) points_[to * D + d] = x[d] / norm;
      ++to;
    }
    count_ = static_cast<uint32_t>(total);
    if (count_ == 0) {
      if (threadIdx.x < D) points_[threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
      count_ = 1;
    }
    __syncthreads();
  }

  // k-means++.
  __device__ void seed() {
    for (uint32_t i = threadIdx.x; i < count_; i += kThreads) s_.closeness[i] = INFINITY;
    auto chosen = static_cast<uint32_t>(a_.draws[0] % count_);
    for (uint32_t cluster = 0; cluster < clusters_; ++cluster) {
      __syncthreads();
      if (threadIdx.x < D) {
        s_.centroids[cluster * D + threadIdx.x] = points_[chosen * D + threadIdx.x];
      }
      __syncthreads();
      chosen = draw(cluster, chosen);
    }
    __syncthreads();
  }

  __device__ void improve() {
    assign();
    __syncthreads();
    for (uint32_t cluster = threadIdx.x / D; threadIdx.x < kThreads / D * D && cluster < clusters_;
         cluster += kThreads / D) {
      const uint32_t d = threadIdx.x % D;
      float sum = 0.0f;
      uint32_t size = 0;
      for (uint32_t i = 0; i < count_; ++i) {
        if (s_.nearest[i] != cluster) continue;
        sum += points_[i * D + d];
        ++size;
      }
      // An empty cluster is told by a sum that no other has.
      s_.centroids[cluster * D + d] = size > 0 ? sum : NAN;
    }
    __syncthreads();
    fill_empty();
    for (uint32_t cluster = threadIdx.x; cluster < clusters_; cluster += kThreads) {
      float* own = &s_.centroids[cluster * D];
      float squares = 0.0f;
      for (int d = 0; d < D; ++d) squares += own[d] * own[d];
      const float norm = sqrtf(squares);
      const float* before = centroids() + cluster * D;  // points that cancel out: it stays
      for (int d = 0; d < D; ++d) own[d] = norm > 0.0f ? own[d] / norm : before[d];
    }
    __syncthreads();
    store();
  }

  __device__ void store() {
    for (uint32_t i = threadIdx.x; i < clusters_ * D; i += kThreads) {
      centroids()[i] = s_.centroids[i];
    }
    __syncthreads();
  }

  // How near points are to their centroids.
  __device__ void describe() {
    assign();
    double sum = 0.0, squares = 0.0;
    for (uint32_t i = threadIdx.x; i < count_; i += kThreads) {
      sum += s_.closeness[i];
      squares += double{s_.closeness[i]} * s_.closeness[i];
    }
    double mean = 0.0, square = 0.0;
    sum_before(sum, s_.sums, &mean);
    sum_before(squares, s_.sums, &square);
    mean /= count_;
    const double variance = fmax(0.0, square / count_ - mean * mean);
    if (threadIdx.x > 0) return;
    a_.index.usual[a_.shape.tasks(a_.layer) + blockIdx.x] = {static_cast<float>(mean),
                                                             static_cast<float>(sqrt(variance))};
  }

 private:
  __device__ float* centroids() const {
    return a_.index.centroids + (a_.shape.lists(a_.layer) + blockIdx.x * clusters_) * D;
  }

  // A point for the next seed, in proportion to its distance from the nearest one.
  __device__ uint32_t draw(uint32_t cluster, uint32_t chosen) {
    const uint32_t first = threadIdx.x * kOwn, end = min(count_, first + kOwn);
    double own = 0.0;
    for (uint32_t i = first; i < end; ++i) {
      float x[D];
      for (int d = 0; d < D; ++d) x[d] = points_[i * D + d];
      const float far = 1.0f - dot(x, &s_.centroids[cluster * D]);
      s_.closeness[i] = fminf(fmaxf(far, 0.0f), s_.closeness[i]);
      own += s_.closeness[i];
    }
    if (threadIdx.x == 0) {
      s_.found = ~0u;
      s_.last = 0;
    }
    double total = 0.0, sum = sum_before(own, s_.sums, &total);
    const double left = static_cast<double>(a_.draws[cluster + 1] >> 11) * 0x1p-53 * total;
    uint32_t found = ~0u, last = 0;
    for (uint32_t i = first; i < end; ++i) {
      if (s_.closeness[i] <= 0.0f) continue;
      sum += s_.closeness[i];
      last = i + 1;
      if (left < sum) found = min(found, i);
    }
    if (found != ~0u) atomicMin(&s_.found, found);
    if (last > 0) atomicMax(&s_.last, last);
    __syncthreads();
    if (s_.found != ~0u) return s_.found;
    return s_.last > 0 ? s_.last - 1 : chosen;  // rounding left none, or all are chosen
  }

  __device__ void assign() {
    for (uint32_t i = threadIdx.x; i < count_; i += kThreads) {
      float x[D];
      for (int d = 0; d < D; ++d) x[d] = points_[i * D + d];
      float best = -FLT_MAX;
      uint32_t own = 0;
      for (uint32_t cluster = 0; cluster < clusters_; ++cluster) {
        const float product = dot(x, &s_.centroids[cluster * D]);
        if (!(product > best)) continue;
        best = product;
        own = cluster;
      }
      s_.closeness[i] = best;
      s_.nearest[i] = static_cast<uint8_t>(own);
    }
  }

  // Clusters without points take those that are furthest from their centroids.
  __device__ void fill_empty() {
    if (threadIdx.x >= 32) return;
    for (uint32_t cluster = 0; cluster < clusters_; ++cluster) {
      if (!isnan(s_.centroids[cluster * D])) continue;
      float least = FLT_MAX;
      uint32_t far = 0;
      for (uint32_t i = threadIdx.x; i < count_; i += 32) {
        if (s_.closeness[i] < least) {
          least = s_.closeness[i];
          far = i;
        }
      }
      for (int mask = 1; mask < 32; mask *= 2) {
        const float other = __shfl_xor_sync(~0u, least, mask);
        const uint32_t other_far = __shfl_xor_sync(~0u, far, mask);
        if (other < least || (other == least && other_far < far)) {
          least = other;
          far = other_far;
        }
      }
      for (uint32_t d = threadIdx.x; d < D; d += 32) {
        s_.centroids[cluster * D + d] = points_[far * D + d];
      }
      if (threadIdx.x == 0) s_.closeness[far] = 1.0f;  // the next one takes another
      __syncwarp();
    }
  }

  const TrainCentroidsArgs& a_;
  Shared<D>& s_;
  uint32_t clusters_, count_ = 0;
  float* points_;
};

template <int D>
__global__ __launch_bounds__(kThreads) void train_kernel(
    const __grid_constant__ TrainCentroidsArgs a) {
  __shared__ Shared<D> s;
  Directions<D> directions(a, s);
  directions.load();
  directions.seed();
  directions.store();
  for (uint32_t i = 0; i < a.iterations; ++i) directions.improve();
  directions.describe();
  // Query heads of the KV head forget how near their queries were.
  const uint32_t head = blockIdx.x / a.shape.parts, part = blockIdx.x % a.shape.parts;
  for (uint32_t i = threadIdx.x; i < a.shape.group(); i += kThreads) {
    const size_t query_head = head * a.shape.group() + i;
    a.index.cosines[a.shape.cosines(a.layer) + query_head * a.shape.parts + part] = kNoCosine;
  }
}

}  // namespace

cudaError_t train_centroids(const TrainCentroidsArgs& args, cudaStream_t stream) {
  if (args.rows * args.shape.group() > kMostDirections) return cudaErrorInvalidValue;
  return with_list_dims(args.shape, [&](auto dims) {
    constexpr int kDims = dims;
    train_kernel<kDims><<<args.shape.n_kv_head * args.shape.parts, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

}  // namespace reprise::kernels::cuda

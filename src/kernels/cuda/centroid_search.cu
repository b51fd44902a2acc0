// The keys of a search of lists: a block per query head finds what stands for its query, blocks add
// up the entries of its lists, and one finds the largest sums. A sum is in units of 2^-24, with the
// number of its terms above kCount, so that no key is taken for one of another list.
#include <cfloat>

#include "kernels/cuda/centroid_parts.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kept_tokens.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/top_pages.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kAtomThreads = 256, kAtomWarps = kAtomThreads / 32;
constexpr uint32_t kAddThreads = 256, kAddEntries = 4096;  // of a block
constexpr uint32_t kGatherWarps = 8;
constexpr float kMemory = 1.0f / 16;  // as on the host: weight of the newest cosine,
constexpr float kDrift = 3.0f;        // deviations below the usual one,
constexpr float kRidge = 1e-4f;       // and of the least squares of two centroids
constexpr float kShortest = 1e-12f;   // of a part that has a direction
constexpr float kUnit = 0x1p24f, kMost = 0x1p44f;
constexpr int kCount = 50;
static_assert(top::kThreads == 1024);

struct Nearest {
  float product = -FLT_MAX;
  uint32_t centroid = 0;

  __device__ void add(float other, uint32_t at) {
    if (other < product || (other == product && at >= centroid)) return;
    product = other;
    centroid = at;
  }
};

// The centroid nearest to x [D], but for one. All lanes of a warp.
template <int D>
__device__ Nearest nearest(const float (&x)[D], const float* centroids, uint32_t count,
                           uint32_t but) {
  Nearest found;
  for (uint32_t i = threadIdx.x % 32; i < count; i += 32) {
    if (i != but) found.add(dot(x, centroids + i * D), i);
  }
  for (int mask = 1; mask < 32; mask *= 2) {
    const float product = __shfl_xor_sync(~0u, found.product, mask);
    found.add(product, __shfl_xor_sync(~0u, found.centroid, mask));
  }
  return found;
}

// Of a part x at unit length of a query whose length is norm. All lanes of a warp.
template <int D>
__device__ ListAtoms atoms_of(const ListSearchArgs& a, const ListIndex& index, uint32_t head,
                              uint32_t part, const float (&x)[D], float norm) {
  const ListShape& shape = a.rows.shape;
  const size_t task = shape.tasks(a.layer) + head / shape.group() * shape.parts + part;
  const float* centroids = index.centroids + task * shape.centroids * D;
  const float weight = a.norms ? norm : 1.0f;
  const Nearest first = nearest(x, centroids, shape.centroids, ~0u);
  ListAtoms atoms = {{first.centroid, 0}, 1, {weight, 0.0f}};
  float* kept = index.cosines + shape.cosines(a.layer) + head * shape.parts + part;
  const float2 usual = index.usual[task];
  float cosine = *kept == kNoCosine ? usual.x : *kept;
  cosine += kMemory * (first.product - cosine);
  __syncwarp();
  *kept = cosine;
  if (!a.backoff || shape.centroids < 2 || cosine >= usual.x - kDrift * usual.y) return atoms;
  const Nearest second = nearest(x, centroids, shape.centroids, first.centroid);
  float other[D];
  for (int d = 0; d < D; ++d) other[d] = centroids[first.centroid * D + d];
  const float between = dot(other, centroids + second.centroid * D);
  const float diagonal = 1.0f + kRidge, determinant = diagonal * diagonal - between * between;
  atoms.centroid[1] = second.centroid;
  atoms.count = 2;
  atoms.weight[0] = weight * (diagonal * first.product - between * second.product) / determinant;
  atoms.weight[1] = weight * (diagonal * second.product - between * first.product) / determinant;
  return atoms;
}

__device__ bool searches(const ListSearchArgs& a, uint32_t row, CodeRange* range) {
  *range = code_range(a.rows.rules, a.model_layer, a.rows.positions[row]);
  return a.rows.searches(row, *range);
}

template <int D>
__global__ __launch_bounds__(kAtomThreads) void atoms_kernel(
    const __grid_constant__ ListSearchArgs a) {
  wait_for_kernels_before();
  const ListShape& shape = a.rows.shape;
  const uint32_t head = blockIdx.x, row = blockIdx.y;
  CodeRange range;
  if (!searches(a, row, &range)) return;
  const size_t query = size_t{row} * shape.n_head + head;
  for (uint32_t part = threadIdx.x / 32; part < shape.parts; part += kAtomWarps) {
    const float* q = a.q + query * shape.head_dim + part * D;
    float x[D], squares = 0.0f;
    for (int d = 0; d < D; ++d) {
      x[d] = q[d];
      squares += x[d] * x[d];
    }
    const float norm = sqrtf(squares);
    ListAtoms atoms = {};
    if (norm > kShortest && isfinite(norm)) {
      for (int d = 0; d < D; ++d) x[d] /= norm;
      atoms = atoms_of(a, a.rows.indexes[row], head, part, x, norm);
    }
    if (threadIdx.x % 32 == 0) a.atoms[query * shape.parts + part] = atoms;
  }
}

__global__ __launch_bounds__(kAddThreads) void add_kernel(
    const __grid_constant__ ListSearchArgs a) {
  wait_for_kernels_before();
  const ListShape& shape = a.rows.shape;
  const uint32_t part = blockIdx.y, row = blockIdx.x / shape.n_head;
  const uint32_t head = blockIdx.x % shape.n_head;
  CodeRange range;
  if (!searches(a, row, &range)) return;
  const ListIndex index = a.rows.indexes[row];
  const auto length = static_cast<uint32_t>(index.lengths[a.layer]);
  const uint32_t first = blockIdx.z * kAddEntries, end = min(length, first + kAddEntries);
  const ListAtoms atoms = a.atoms[size_t{blockIdx.x} * shape.parts + part];
  auto* sums = reinterpret_cast<unsigned long long*>(a.sums + size_t{blockIdx.x} * a.rows.capacity *
                                                                  kPageTokens);
  const size_t task = shape.tasks(a.layer) + head / shape.group() * shape.parts + part;
  for (uint32_t atom = 0; atom < atoms.count; ++atom) {
    const size_t at = (task * shape.centroids + atoms.centroid[atom]) * index.stride;
#pragma unroll 4
    for (uint32_t i = first + threadIdx.x; i < end; i += kAddThreads) {
      const uint32_t key = index.keys[at + i];
      if (key < static_cast<uint32_t>(a.rows.rules.sink) ||
          key >= static_cast<uint32_t>(range.recent)) {
        continue;
      }
      const float score = kUnit * atoms.weight[atom] * __half2float(index.scores[at + i]);
      const long long term = __float2ll_rn(fminf(fmaxf(score, -kMost), kMost));
      atomicAdd(&sums[key], static_cast<unsigned long long>(term + (1ll << kCount)));
    }
  }
}

// NaN: no list has the key.
__device__ float score_of(uint64_t sum) {
  const auto all = static_cast<int64_t>(sum);
  const int64_t count = (all + (int64_t{1} << (kCount - 1))) >> kCount;
  if (count == 0) return __uint_as_float(0x7fc00000);
  return __ll2float_rn(all - (count << kCount)) / kUnit;
}

// What a row reads beside its picks.
__device__ void list_others(const ListSearchArgs& a, uint32_t row, const CodeRange& range,
                            bool searched) {
  constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
  const bool in_table =
      range.end > 0 && range.end <= static_cast<int32_t>(a.rows.capacity) * kTokens;
  const int32_t sink = searched ? a.rows.rules.sink / kTokens : 0;
  const int32_t recent = searched ? range.recent / kTokens : 0;
  const int32_t pages = in_table ? sink + (range.end + kTokens - 1) / kTokens - recent : 0;
  const size_t table = size_t{row} * a.rows.capacity;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < pages; i += top::kThreads) {
    a.lists[table + i] = a.pages[table + (i < sink ? i : recent + i - sink)];
  }
  if (threadIdx.x == 0) a.keys[row] = in_table ? (sink - recent) * kTokens + range.end : 0;
}

__global__ __launch_bounds__(top::kThreads) void choose_kernel(
    const __grid_constant__ ListSearchArgs a) {
  __shared__ top::Shared s;
  wait_for_kernels_before();
  const uint32_t row = blockIdx.x / a.rows.shape.n_head;
  CodeRange range;
  const bool searched = searches(a, row, &range);
  if (blockIdx.x % a.rows.shape.n_head == 0) {
    list_others(a, row, range, searched);
    // What was offered before the layers is counted now that nobody asks for it.
    if (searched && threadIdx.x == 0) a.rows.indexes[row].listed[a.layer] = range.recent;
  }
  if (!searched) {
    if (threadIdx.x == 0) a.picked[blockIdx.x] = 0;
    return;
  }
  const size_t at = size_t{blockIdx.x} * a.rows.capacity * kPageTokens;
  float* scores = a.scores + at;
  uint64_t* sums = a.sums + at;
  const auto begin = static_cast<uint32_t>(a.rows.rules.sink);
  const auto end = static_cast<uint32_t>(range.recent);
  uint32_t listed = 0;
#pragma unroll 4
  for (uint32_t key = begin + threadIdx.x; key < end; key += top::kThreads) {
    const float score = score_of(sums[key]);
    scores[key] = score;
    sums[key] = 0;
    listed += isnan(score) ? 0 : 1;
  }
  listed = __reduce_add_sync(~0u, listed);
  if (threadIdx.x % 32 == 0) s.warps[0][threadIdx.x / 32] = listed;
  __syncthreads();
  listed = __reduce_add_sync(~0u, s.warps[0][threadIdx.x % 32]);
  __syncthreads();
  const uint32_t wanted = min(listed, listed_picks(a.rows.rules, range));
  uint32_t* picks = a.picks + size_t{blockIdx.x} * a.pick_capacity;
  if (threadIdx.x == 0) a.picked[blockIdx.x] = static_cast<int32_t>(wanted);
  if (wanted == end - begin) {
    for (uint32_t i = threadIdx.x; i < wanted; i += top::kThreads) picks[i] = begin + i;
  } else if (wanted > 0) {
    top::Competitors all(s, scores, begin, end);
    all.write(all.choose(wanted), [&](uint32_t i, uint32_t key) { picks[i] = key; });
  }
}

__global__ __launch_bounds__(kGatherWarps *
                             32) void gather_kernel(const __grid_constant__ GatherKeysArgs a) {
  wait_for_kernels_before();
  const uint32_t head = blockIdx.y, row = blockIdx.z, n_head = a.side.n_kv_head;
  const uint32_t i = blockIdx.x * kGatherWarps + threadIdx.x / 32;
  const size_t list = size_t{row} * n_head + head;
  if (i >= static_cast<uint32_t>(a.picked[list])) return;
  const uint32_t key = a.picks[list * a.pick_capacity + i];
  const uint32_t page = a.pages[size_t{row} * a.capacity + key / kPageTokens];
  TokenCopy token;
  token.load(a.kv, head / (n_head / a.kv.n_kv_head), {page, key % kPageTokens});
  const uint32_t to = row * (a.pick_capacity / kPageTokens) + i / kPageTokens;
  token.store(a.side, head, {to, i % kPageTokens});
}

}  // namespace

cudaError_t choose_listed(const ListSearchArgs& args, cudaStream_t stream) {
  const ListShape& shape = args.rows.shape;
  const uint32_t heads = args.rows.count * shape.n_head;
  if (heads == 0) return cudaSuccess;
  return with_list_dims(shape, [&](auto dims) {
    constexpr int kDims = dims;
    cudaError_t status = launch_overlapped(atoms_kernel<kDims>, dim3(shape.n_head, args.rows.count),
                                           kAtomThreads, stream, args);
    if (status != cudaSuccess) return status;
    // Heads of all rows may be more than a grid has places but along x.
    const dim3 blocks(heads, shape.parts, (args.most_entries + kAddEntries - 1) / kAddEntries);
    status = launch_overlapped(add_kernel, blocks, kAddThreads, stream, args);
    if (status != cudaSuccess) return status;
    return launch_overlapped(choose_kernel, dim3(heads), top::kThreads, stream, args);
  });
}

cudaError_t gather_keys(const GatherKeysArgs& args, cudaStream_t stream) {
  if (args.count == 0 || args.pick_capacity == 0) return cudaSuccess;
  const dim3 blocks((args.pick_capacity + kGatherWarps - 1) / kGatherWarps, args.side.n_kv_head,
                    args.count);
  return launch_overlapped(gather_kernel, blocks, kGatherWarps * 32, stream, args);
}

}  // namespace reprise::kernels::cuda

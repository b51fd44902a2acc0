// Lists of keys from all their products: those of some parts are kept at once, a block finds the
// best of each list by radix, in the order of keys, and makes a heap of them.
#include <algorithm>

#include "kernels/cuda/centroid_parts.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kKeys = 128;  // of a block that multiplies
constexpr uint32_t kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kHighBits = 11, kLowBits = 5, kBins = 1u << kHighBits;

template <int D>
__global__ __launch_bounds__(kKeys) void products_kernel(const __grid_constant__ FillListsArgs a,
                                                         uint32_t first_task) {
  __shared__ float centroids[kMostCentroids * D];
  const uint32_t task = first_task + blockIdx.y, count = a.shape.centroids;
  const float* from = a.index.centroids + (a.shape.lists(a.layer) + size_t{task} * count) * D;
  for (uint32_t i = threadIdx.x; i < count * D; i += kKeys) centroids[i] = from[i];
  __syncthreads();
  const uint32_t token = blockIdx.x * kKeys + threadIdx.x;
  if (token >= a.end) return;
  float x[D];
  load_part(a.kv, a.pages, token, task / a.shape.parts, task % a.shape.parts, x);
  __half* to = a.products + size_t{blockIdx.y} * count * a.end + token;
  for (uint32_t i = 0; i < count; ++i) {
    to[size_t{i} * a.end] = __float2half_rn(a.scale * dot(x, &centroids[i * D]));
  }
}

// Orders like scores, -0 as 0; NaN is 0 and nothing else.
__device__ uint32_t order_of(__half score) {
  if (__hisnan(score)) return 0;
  const uint32_t bits = __half_as_ushort(score) == 0x8000 ? 0 : __half_as_ushort(score);
  return bits >> 15 != 0 ? bits ^ 0xffffu : bits | 0x8000u;
}

struct Shared {
  uint32_t counts[kBins];  // of the highest digit first
  uint32_t warps[2][kWarps];
  uint32_t bin, before;
};

// The bin of counts [bins], whose owners' sums reach wanted; *before: of the bins before it.
// Fewer than wanted: the last one. All threads.
__device__ uint32_t find_bin(Shared& s, uint32_t bins, uint32_t wanted, uint32_t* before) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t each = (bins + kThreads - 1) / kThreads;
  const uint32_t first = threadIdx.x * each, end = min(bins, first + each);
  uint32_t own = 0;
  for (uint32_t i = first; i < end; ++i) own += s.counts[i];
  uint32_t sum = own;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t left = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += left;
  }
  if (lane == 31) s.warps[0][warp] = sum;
  if (threadIdx.x == 0) s.bin = bins - 1;
  __syncthreads();
  for (uint32_t w = 0; w < warp; ++w) sum += s.warps[0][w];
  uint32_t reached = sum - own;
  for (uint32_t i = first; i < end; reached += s.counts[i], ++i) {
    if (reached >= wanted || reached + s.counts[i] < wanted) continue;
    s.bin = i;
    s.before = reached;
  }
  __syncthreads();
  *before = s.before;
  return s.bin;
}

// All orders above cut are in, and the first ties of those at it.
struct Cut {
  uint32_t order, ties;
};

__device__ Cut find_cut(Shared& s, const __half* products, uint32_t end, uint32_t length) {
  for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) s.counts[i] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < end; i += kThreads) {
    const uint32_t order = order_of(products[i]);
    if (order > 0) atomicAdd(&s.counts[kBins - 1 - (order >> kLowBits)], 1u);
  }
  __syncthreads();
  uint32_t all = 0;
  for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) all += s.counts[i];
  all = __reduce_add_sync(~0u, all);
  if (threadIdx.x % 32 == 0) s.warps[1][threadIdx.x / 32] = all;
  __syncthreads();
  all = 0;
  for (uint32_t w = 0; w < kWarps; ++w) all += s.warps[1][w];
  if (all <= length) return {0, 0};
  uint32_t before = 0;
  const uint32_t high = kBins - 1 - find_bin(s, kBins, length, &before);
  constexpr uint32_t kLow = 1u << kLowBits;
  for (uint32_t i = threadIdx.x; i < kLow; i += kThreads) s.counts[i] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < end; i += kThreads) {
    const uint32_t order = order_of(products[i]);
    if (order > 0 && order >> kLowBits == high) atomicAdd(&s.counts[kLow - 1 - order % kLow], 1u);
  }
  __syncthreads();
  uint32_t more = 0;
  const uint32_t low = kLow - 1 - find_bin(s, kLow, length - before, &more);
  return {high << kLowBits | low, length - before - more};
}

// Writes what is in, in the order of keys. Returns how many.
__device__ uint32_t write_list(Shared& s, const __half* products, uint32_t end, const Cut& cut,
                               const ListHeap& list) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t share = (end + kThreads - 1) / kThreads * 32;
  const uint32_t first = min(end, warp * share), last = min(end, first + share);
  uint32_t sure = 0, tied = 0;
  for (uint32_t i = first + lane; i < last; i += 32) {
    const uint32_t order = order_of(products[i]);
    sure += order > cut.order ? 1 : 0;
    tied += order == cut.order ? 1 : 0;
  }
  sure = __reduce_add_sync(~0u, sure);
  tied = __reduce_add_sync(~0u, tied);
  __syncthreads();
  if (lane == 0) {
    s.warps[0][warp] = sure;
    s.warps[1][warp] = tied;
  }
  __syncthreads();
  uint32_t all = 0;
  sure = tied = 0;
  for (uint32_t w = 0; w < kWarps; ++w) {
    if (w < warp) {
      sure += s.warps[0][w];
      tied += s.warps[1][w];
    }
    all += s.warps[0][w];
  }
  const uint32_t left = (1u << lane) - 1;
  for (uint32_t start = first; start < last; start += 32) {
    const uint32_t i = start + lane;
    const __half score = i < last ? products[i] : __ushort_as_half(0x7fff);
    const uint32_t order = order_of(score);
    const bool is_sure = order > cut.order, is_tied = order > 0 && order == cut.order;
    const uint32_t all_sure = __ballot_sync(~0u, is_sure), all_tied = __ballot_sync(~0u, is_tied);
    const uint32_t ties = min(cut.ties, tied + __popc(all_tied & left));
    if (is_sure || (is_tied && ties < cut.ties)) {
      const uint32_t at = sure + __popc(all_sure & left) + ties;
      list.keys()[at] = i;
      list.scores()[at] = score;
    }
    sure += __popc(all_sure);
    tied += __popc(all_tied);
  }
  return all + cut.ties;
}

__global__ __launch_bounds__(kThreads) void lists_kernel(const __grid_constant__ FillListsArgs a,
                                                         uint32_t first_task) {
  __shared__ Shared s;
  const uint32_t centroid = blockIdx.x, task = first_task + blockIdx.y;
  const __half* products = a.products + (size_t{blockIdx.y} * a.shape.centroids + centroid) * a.end;
  const size_t at = a.shape.lists(a.layer) + size_t{task} * a.shape.centroids + centroid;
  ListHeap list(a.index, at, a.length);
  const Cut cut = find_cut(s, products, a.end, a.length);
  const uint32_t count = write_list(s, products, a.end, cut, list);
  for (uint32_t i = count + threadIdx.x; i < a.length; i += kThreads) {
    list.keys()[i] = ~0u;
    list.scores()[i] = __ushort_as_half(0xfc00);  // -inf
  }
  // Level by level from below, so that what is under an entry is a heap already.
  uint32_t level = 1;
  while (2 * level < a.length) level *= 2;
  for (; level > 0; level /= 2) {
    __syncthreads();
    for (uint32_t i = level - 1 + threadIdx.x; i < min(2 * level - 1, a.length); i += kThreads) {
      list.sink(i, list.keys()[i], list.scores()[i]);
    }
  }
  if (task > 0 || centroid > 0 || threadIdx.x > 0) return;
  a.index.listed[a.layer] = static_cast<int32_t>(a.end);
  a.index.lengths[a.layer] = static_cast<int32_t>(a.length);
}

}  // namespace

cudaError_t fill_lists(const FillListsArgs& args, cudaStream_t stream) {
  const size_t each = list_products(args.shape, args.end);
  if (args.end == 0 || args.length == 0 || args.product_room < each) return cudaErrorInvalidValue;
  const uint32_t tasks = args.shape.n_kv_head * args.shape.parts;
  const auto at_once = static_cast<uint32_t>(std::min<size_t>(tasks, args.product_room / each));
  return with_list_dims(args.shape, [&](auto dims) {
    constexpr int kDims = dims;
    for (uint32_t first = 0; first < tasks; first += at_once) {
      const uint32_t count = std::min(at_once, tasks - first);
      const dim3 blocks((args.end + kKeys - 1) / kKeys, count);
      products_kernel<kDims><<<blocks, kKeys, 0, stream>>>(args, first);
      lists_kernel<<<dim3(args.shape.centroids, count), kThreads, 0, stream>>>(args, first);
    }
    return cudaGetLastError();
  });
}

}  // namespace reprise::kernels::cuda

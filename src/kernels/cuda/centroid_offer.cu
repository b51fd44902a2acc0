// Keys that lists take in one after another. A block has the lists of one part of one KV head, a
// thread one of them.
#include "kernels/cuda/centroid_parts.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/launch.cuh"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 128;

template <int D>
__device__ void offer(const PagedKv& kv, const ListShape& shape, const ListIndex& index,
                      uint32_t layer, const uint32_t* pages, int32_t begin, int32_t end,
                      float scale) {
  const uint32_t head = blockIdx.x / shape.parts, part = blockIdx.x % shape.parts;
  const auto length = static_cast<uint32_t>(index.lengths[layer]);
  for (uint32_t i = threadIdx.x; i < shape.centroids; i += kThreads) {
    const size_t at = shape.lists(layer) + size_t{blockIdx.x} * shape.centroids + i;
    ListHeap list(index, at, length);
    for (int32_t key = begin; key < end; ++key) {
      float x[D];
      load_part(kv, pages, static_cast<uint32_t>(key), head, part, x);
      list.offer(static_cast<uint32_t>(key),
                 __float2half_rn(scale * dot(x, index.centroids + at * D)));
    }
  }
}

template <int D>
__global__ __launch_bounds__(kThreads) void offer_kernel(const __grid_constant__ OfferKeysArgs a) {
  offer<D>(a.kv, a.shape, a.index, a.layer, a.pages, a.begin, a.end, a.scale);
  if (blockIdx.x == 0 && threadIdx.x == 0) a.index.listed[a.layer] = a.end;
}

template <int D>
__global__ __launch_bounds__(kThreads) void offer_new_kernel(
    const __grid_constant__ OfferNewKeysArgs a) {
  wait_for_kernels_before();
  const uint32_t layer = blockIdx.y, row = blockIdx.z, model_layer = a.model_layers[layer];
  const CodeRange range = code_range(a.rows.rules, model_layer, a.rows.positions[row]);
  if (!a.rows.searches(row, range)) return;
  const size_t table = size_t{model_layer} * a.table_rows + row;
  const ListIndex index = a.rows.indexes[row];
  offer<D>(a.kv, a.rows.shape, index, layer, a.tables + table * a.rows.capacity,
           index.listed[layer], range.recent, a.rows.scale);
}

}  // namespace

cudaError_t offer_keys(const OfferKeysArgs& args, cudaStream_t stream) {
  return with_list_dims(args.shape, [&](auto dims) {
    constexpr int kDims = dims;
    offer_kernel<kDims><<<args.shape.n_kv_head * args.shape.parts, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

cudaError_t offer_new_keys(const OfferNewKeysArgs& args, cudaStream_t stream) {
  const ListShape& shape = args.rows.shape;
  if (args.rows.count == 0 || shape.layers == 0) return cudaSuccess;
  return with_list_dims(shape, [&](auto dims) {
    constexpr int kDims = dims;
    const dim3 blocks(shape.n_kv_head * shape.parts, shape.layers, args.rows.count);
    return launch_overlapped(offer_new_kernel<kDims>, blocks, kThreads, stream, args);
  });
}

}  // namespace reprise::kernels::cuda

#include <cuda_fp16.h>

#include "kernels/cuda/kv_store.cuh"
#include "kernels/cuda/place_rows.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kHeads = 4;  // of a warp, so that it waits for addresses and values once

__host__ __device__ constexpr uint32_t parts_of(uint32_t n_kv_head) {
  return (n_kv_head + kHeads - 1) / kHeads;
}

// Values 2 * pair and the next one of a row.
__device__ __forceinline__ float2 stored_pair(const std::byte* stored, StoredRow row,
                                              uint32_t pair) {
  const std::byte* values = stored + size_t{row.at} * StoredRow::kUnit;
  if (row.scales == StoredRow::kValues) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(values)[pair]);
  }
  const char2 codes = reinterpret_cast<const char2*>(values)[pair];
  const float scale = __half2float(
      reinterpret_cast<const __half*>(stored)[size_t{row.scales} + pair / (kScaleValues / 2)]);
  const auto wide = [scale](signed char code) { return static_cast<float>(code) * scale; };
  return __bfloat1622float2(__floats2bfloat162_rn(wide(codes.x), wide(codes.y)));
}

// A warp per kHeads heads of a row: keys, then values.
template <int N>
__global__ __launch_bounds__(kWarps *
                             32) void place_kernel(const __grid_constant__ PlaceRowsArgs a) {
  const uint32_t n_kv_head = a.kv.n_kv_head, head_dim = a.kv.head_dim;
  const uint32_t parts = parts_of(n_kv_head);
  const size_t unit = size_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const auto row = static_cast<uint32_t>(unit / (2 * parts));
  if (row >= a.rows) return;
  const auto part = static_cast<uint32_t>(unit % (2 * parts));
  const bool is_key = part < parts;
  const uint32_t first = part % parts * kHeads, count = min(kHeads, n_kv_head - first);
  const auto position = static_cast<uint32_t>(a.positions[row]);
  const StoredRow from = is_key ? a.k_rows[row] : a.v_rows[row];
  const size_t id = a.pages[position / kPageTokens];
  const auto* angles = reinterpret_cast<const float2*>(a.cos_sin) + size_t{row} * a.pairs;
  float2 heads[kHeads][N] = {};
#pragma unroll
  for (uint32_t i = 0; i < N; ++i) {
    const uint32_t dim = 64 * i + threadIdx.x % 32 * 2;
    if (dim >= head_dim) continue;
    const float2 by = is_key && dim / 2 < a.pairs ? angles[dim / 2] : float2{1.0f, 0.0f};
#pragma unroll
    for (uint32_t head = 0; head < kHeads; ++head) {
      if (head >= count) continue;
      const float2 two = stored_pair(a.stored, from, ((first + head) * head_dim + dim) / 2);
      heads[head][i] = {two.x * by.x - two.y * by.y, two.x * by.y + two.y * by.x};
    }
  }
  auto* pages = static_cast<unsigned char*>(const_cast<void*>(a.kv.pages));
#pragma unroll
  for (uint32_t head = 0; head < kHeads; ++head) {
    if (head >= count) continue;
    const size_t tile = (id * n_kv_head + first + head) * 2 + (is_key ? 0 : 1);
    if (!is_key) make_finite(heads[head]);
    store_token(a.kv.type, head_dim, position % kPageTokens, heads[head],
                pages + tile * tile_bytes(a.kv.type, head_dim));
  }
}

template <int N>
cudaError_t launch(const PlaceRowsArgs& args, cudaStream_t stream) {
  const size_t units = size_t{args.rows} * 2 * parts_of(args.kv.n_kv_head);
  const auto blocks = static_cast<uint32_t>((units + kWarps - 1) / kWarps);
  place_kernel<N><<<blocks, kWarps * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t place_rows(const PlaceRowsArgs& args, cudaStream_t stream) {
  const uint32_t head_dim = args.kv.head_dim;
  const uint32_t multiple = args.kv.type == KvType::kFP8 ? 32 : 8;
  if (head_dim > 256 || head_dim % multiple != 0) return cudaErrorNotSupported;
  if (args.rows == 0) return cudaSuccess;
  if (head_dim <= 64) return launch<1>(args, stream);
  return head_dim <= 128 ? launch<2>(args, stream) : launch<4>(args, stream);
}

}  // namespace reprise::kernels::cuda

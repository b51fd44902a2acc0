#include <algorithm>

#include "kernels/cuda/kv_fragments.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rotated_pages.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256, kBlocksOfProcessor = 8;

// Eight dimensions of a token.
template <KvType type>
__device__ void load_eight(const unsigned char* tile, uint32_t head_dim, uint32_t token,
                           uint32_t dim, float2 (&values)[4]) {
  const unsigned char* from = tile + element_offset(type, head_dim, token, dim);
  if constexpr (type == KvType::kFP8) {
    const uint2 codes = *reinterpret_cast<const uint2*>(from);
    const float scale = *reinterpret_cast<const float*>(tile + fp8_scale_offset(head_dim, token));
    const uint32_t pairs[] = {widen_e4m3<false>(codes.x), widen_e4m3<true>(codes.x),
                              widen_e4m3<false>(codes.y), widen_e4m3<true>(codes.y)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack<__half>(pairs[i]);
      values[i] = {two.x * scale, two.y * scale};
    }
  } else {
    const uint4 eight = *reinterpret_cast<const uint4*>(from);
    const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = unpack<Operand<type>>(pairs[i]);
  }
}

__device__ float2 turned(float2 two, float2 by) {
  return {two.x * by.x - two.y * by.y, two.x * by.y + two.y * by.x};
}

__device__ void rotate(const KeyAngles& angles, uint32_t place, uint32_t token, uint32_t dim,
                       float2 (&values)[4]) {
  const auto* of_page = reinterpret_cast<const float2*>(angles.of_pages) + place * angles.pairs;
  const auto* of_token = reinterpret_cast<const float2*>(angles.of_tokens) + token * angles.pairs;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t pair = dim / 2 + i;
    if (pair < angles.pairs) values[i] = turned(values[i], turned(of_page[pair], of_token[pair]));
  }
}

// A thread per chunk of 16 bytes that is written.
template <KvType type>
__global__ __launch_bounds__(kThreads) void rotate_kernel(
    const __grid_constant__ RotatedPagesArgs a) {
  constexpr KvType kOut = rotated_type(type);
  const uint32_t dim = a.kv.head_dim, chunks = dim / 8, tiles = 2 * a.kv.n_kv_head;
  const size_t in_page = size_t{tiles} * kPageTokens * chunks, all = a.count * in_page;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < all;
       i += size_t{gridDim.x} * kThreads) {
    const auto place = static_cast<uint32_t>(i / in_page),
               rest = static_cast<uint32_t>(i % in_page);
    const uint32_t chunk = rest % chunks, token = rest / chunks % kPageTokens;
    const uint32_t tile = rest / chunks / kPageTokens;
    uint32_t key = place * kPageTokens + token;
    if (a.tokens != nullptr) {
      const auto keys = static_cast<uint32_t>(*a.keys);
      if (place * kPageTokens >= keys) return;
      key = static_cast<uint32_t>(a.tokens[min(key, keys - 1)]);
    }
    const auto* from = static_cast<const unsigned char*>(a.kv.pages) +
                       (size_t{a.pages[key / kPageTokens]} * tiles + tile) * tile_bytes(type, dim);
    float2 values[4];
    load_eight<type>(from, dim, key % kPageTokens, chunk * 8, values);
    if (tile % 2 == 0) rotate(a.angles, place, token, chunk * 8, values);
    auto* to = static_cast<unsigned char*>(a.out) +
               (size_t{place} * tiles + tile) * tile_bytes(kOut, dim) +
               element_offset(kOut, dim, token, chunk * 8);
    using T = Operand<kOut>;
    *reinterpret_cast<uint4*>(to) = {
        pack<T>(values[0].x, values[0].y), pack<T>(values[1].x, values[1].y),
        pack<T>(values[2].x, values[2].y), pack<T>(values[3].x, values[3].y)};
  }
}

template <KvType type>
cudaError_t launch(const RotatedPagesArgs& args, cudaStream_t stream) {
  const size_t threads =
      size_t{args.count} * args.kv.n_kv_head * 2 * kPageTokens * (args.kv.head_dim / 8);
  const size_t most = size_t{device_limits().multiprocessors} * kBlocksOfProcessor;
  const auto blocks = static_cast<uint32_t>(std::min((threads + kThreads - 1) / kThreads, most));
  rotate_kernel<type><<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t rotate_pages(const RotatedPagesArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  if (args.kv.head_dim % (args.kv.type == KvType::kFP8 ? 32 : 8) != 0) return cudaErrorNotSupported;
  switch (args.kv.type) {
    case KvType::kBF16:
      return launch<KvType::kBF16>(args, stream);
    case KvType::kF16:
      return launch<KvType::kF16>(args, stream);
    case KvType::kFP8:
      return launch<KvType::kFP8>(args, stream);
    case KvType::kF32:
      return cudaErrorNotSupported;
  }
  return cudaErrorInvalidValue;
}

}  // namespace reprise::kernels::cuda

// Tables of the products of queries with centroids, in 7 bits, as kernels/code_tables.h makes them.
#pragma once

#include "kernels/cuda/key_codes.h"
#include "kernels/cuda/row_math.cuh"

namespace reprise::kernels::cuda {

/// Of the query heads of a KV head. A word of entries has four heads, a byte each, and a plane's
/// two tables lie in the order of the planes that are used.
template <uint32_t D, uint32_t kWords, uint32_t kThreads>
struct CodeTables {
  static constexpr uint32_t kParts = D / 2, kPlanes = D / 4, kHeads = 4 * kWords;
  static constexpr float kLargestEntry = 127.0f;  // so that two fit in a byte
  static_assert(kPlanes <= 64 && kThreads >= kPlanes);

  union {
    uint32_t entries[kWords][kPlanes + 1][2][kCodeEntries];  // one more plane for odd numbers
    struct {
      float spans[kHeads][kParts], lows[kHeads][kParts];
    };
  };
  float told[kPlanes];
  float low[kHeads], step[kHeads];  // a sum of entries stands for low + step sum
  uint32_t masks[2];                // of planes that are used
  uint32_t offsets[kPlanes + 1];    // of their codes, in bytes

  __device__ uint32_t planes_used() const { return __popc(masks[0]) + __popc(masks[1]); }

  /// All threads of the block. q: [group, D]; book: of the KV head in the layer.
  __device__ void make(const __nv_bfloat16* q, float scale, uint32_t group, const float* book,
                       float skip) {
    for (uint32_t i = threadIdx.x; i < kParts * kHeads; i += kThreads) {
      const Products products(q, scale, group, book, i);
      spans[i % kHeads][i / kHeads] = products.high - products.low;
      lows[i % kHeads][i / kHeads] = products.low;
    }
    __syncthreads();
    choose_planes(skip);
    for (uint32_t head = threadIdx.x / 32; head < kHeads; head += kThreads / 32) sum_up(head);
    __syncthreads();  // entries lie where the spans do
    for (uint32_t i = threadIdx.x; i < kWords * (kPlanes + 1) * 2 * kCodeEntries; i += kThreads) {
      (&entries[0][0][0][0])[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kParts * kHeads; i += kThreads) {
      if (i % kHeads < group) write({q, scale, group, book, i}, i % kHeads, i / kHeads);
    }
    __syncthreads();
  }

 private:
  // Of a head with the centroids of a part.
  struct Products {
    float values[kCodeEntries], low = INFINITY, high = -INFINITY;

    __device__ Products(const __nv_bfloat16* q, float scale, uint32_t group, const float* book,
                        uint32_t i) {
      const uint32_t head = i % kHeads, part = i / kHeads;
      float2 two = {};
      if (head < group) {
        two = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(q + head * D + 2 * part));
      }
      const float* centroids = book + size_t{part} * kBookPart;
#pragma unroll
      for (uint32_t c = 0; c < kCodeEntries; c += 4) {
        const float4 x = *reinterpret_cast<const float4*>(centroids + c);
        const float4 y = *reinterpret_cast<const float4*>(centroids + kCodeEntries + c);
        values[c] = scale * two.x * x.x + scale * two.y * y.x;
        values[c + 1] = scale * two.x * x.y + scale * two.y * y.y;
        values[c + 2] = scale * two.x * x.z + scale * two.y * y.z;
        values[c + 3] = scale * two.x * x.w + scale * two.y * y.w;
      }
      for (const float value : values) {
        low = fminf(low, value);
        high = fmaxf(high, value);
      }
    }
  };

  __device__ bool uses(uint32_t plane) const { return (masks[plane / 32] >> plane % 32 & 1) != 0; }
  __device__ uint32_t place(uint32_t plane) const {
    const uint32_t before = masks[plane / 32] & ((1u << plane % 32) - 1);
    return __popc(before) + (plane < 32 ? 0 : __popc(masks[0]));
  }

  // Those that tell most, as many as leave no more than the share that may be skipped.
  __device__ void choose_planes(float skip) {
    const uint32_t plane = threadIdx.x;
    if (plane < kPlanes) {
      told[plane] = 0.0f;
      for (uint32_t head = 0; head < kHeads; ++head) {
        for (uint32_t part = 2 * plane; part < 2 * plane + 2; ++part) {
          told[plane] += spans[head][part] * spans[head][part];
        }
      }
    }
    if (threadIdx.x < 2) masks[threadIdx.x] = 0;
    __syncthreads();
    if (plane < kPlanes) {
      float total = 0.0f, up_to = 0.0f;  // of the planes that tell no more than this one
      uint32_t more = 0;
      for (uint32_t other = 0; other < kPlanes; ++other) {
        const bool is_more =
            told[other] > told[plane] || (told[other] == told[plane] && other < plane);
        total += told[other];
        up_to += is_more ? 0.0f : told[other];
        more += is_more ? 1 : 0;
      }
      const bool used = more == 0 || !(up_to <= skip * total);
      if (used) atomicOr(&masks[plane / 32], 1u << plane % 32);
    }
    __syncthreads();
    if (plane < kPlanes && uses(plane)) offsets[place(plane)] = plane * kCodeBlock;
    if (plane == 0) offsets[planes_used()] = 0;
  }

  // What is not read counts as the middle of its span. A warp calls.
  __device__ void sum_up(uint32_t head) {
    float lowest = 0.0f, widest = 0.0f;
    for (uint32_t part = threadIdx.x % 32; part < kParts; part += 32) {
      lowest += lows[head][part] + (uses(part / 2) ? 0.0f : 0.5f * spans[head][part]);
      widest = fmaxf(widest, spans[head][part]);
    }
    lowest = warp_sum(lowest);
    for (int mask = 1; mask < 32; mask *= 2) {
      widest = fmaxf(widest, __shfl_xor_sync(~0u, widest, mask));
    }
    if (threadIdx.x % 32 != 0) return;
    low[head] = lowest;
    step[head] = widest > 0.0f ? widest / kLargestEntry : 1.0f;
  }

  __device__ void write(const Products& products, uint32_t head, uint32_t part) {
    if (!uses(part / 2)) return;
    const float levels = 1.0f / step[head];
    auto* to = reinterpret_cast<uint8_t*>(entries[head / 4][place(part / 2)][part % 2]) + head % 4;
#pragma unroll
    for (uint32_t c = 0; c < kCodeEntries; ++c) {
      const float level = (products.values[c] - products.low) * levels + 0.5f;
      to[4 * c] = static_cast<uint8_t>(level > 0.0f ? fminf(level, kLargestEntry) : 0.0f);
    }
  }
};

}  // namespace reprise::kernels::cuda

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
  static constexpr uint32_t kItems = kParts * kHeads, kWarps = kThreads / 32;
  static constexpr uint32_t kPlaneItems = 2 * kHeads;  // heads and parts of a plane, side by side
  static constexpr float kLargestEntry = 127.0f;       // so that two fit in a byte
  static_assert(kPlanes <= 64 && kThreads % kPlaneItems == 0 && kItems % 32 == 0);

  uint32_t entries[kWords][kPlanes][2][kCodeEntries];
  float told[kPlanes];
  float lows[kWarps][kHeads], spans[kWarps][kHeads];  // sums, and the largest, of the warps' parts
  float low[kHeads], step[kHeads];                    // a sum stands for low + step sum
  uint32_t masks[2];                     // of planes that are used, of 16 an even number
  alignas(8) uint32_t offsets[kPlanes];  // of their codes, in bytes

  // Of 16 planes.
  __device__ uint32_t used_of(uint32_t sixteen) const {
    return __popc(masks[sixteen / 2] >> sixteen % 2 * 16 & 0xffffu);
  }

  /// Of a part.
  struct Centroids {
    float4 x[kCodeEntries / 4], y[kCodeEntries / 4];

    /// Of an item, the thread's first one. book: of the KV head in the layer.
    __device__ explicit Centroids(const float* book, uint32_t item = threadIdx.x) {
      const auto* from = reinterpret_cast<const float4*>(book + item / kHeads * kBookPart);
      if (item >= kItems) return;
#pragma unroll
      for (uint32_t i = 0; i < kCodeEntries / 4; ++i) {
        x[i] = from[i];
        y[i] = from[kCodeEntries / 4 + i];
      }
    }
  };

  /// All threads of the block. q: [group, D]; first_centroids: of book.
  __device__ void make(const __nv_bfloat16* q, float scale, uint32_t group, const float* book,
                       const Centroids& first_centroids, float skip) {
    const uint32_t first = threadIdx.x;
    Products own;  // of the first that are the thread's; others are computed twice
    if (first < kItems) own = Products(q, scale, group, first_centroids, first);
    const auto products_of = [&](uint32_t i) {
      return Products(q, scale, group, Centroids(book, i), i);
    };
    float widest = 0.0f;  // of the thread's head, which all its items share
    for (uint32_t i = first; i < kItems; i += kThreads) {
      const float span = i == first ? own.span() : products_of(i).span();
      widest = fmaxf(widest, span);
      float sum = span * span;
      for (uint32_t mask = 1; mask < kPlaneItems; mask *= 2) {
        sum += __shfl_xor_sync(~0u, sum, mask);
      }
      if (i % kPlaneItems == 0) told[i / kPlaneItems] = sum;
    }
    for (uint32_t mask = kHeads; mask < 32; mask *= 2) {
      widest = fmaxf(widest, __shfl_xor_sync(~0u, widest, mask));
    }
    if (first % 32 < kHeads) spans[first / 32][first % 32] = widest;
    if (first < 2) masks[first] = 0;
    __syncthreads();
    choose_planes(skip);
    if (first < kHeads) step[first] = widest_step(first);
    __syncthreads();
    even_out();
    __syncthreads();
    float lowest = 0.0f;
    for (uint32_t i = first; i < kItems; i += kThreads) {
      const Products products = i == first ? own : products_of(i);
      const uint32_t part = i / kHeads;
      write(products, i % kHeads, part, group);
      lowest += uses(part / 2) ? products.low : 0.5f * (products.low + products.high);
    }
    for (uint32_t mask = kHeads; mask < 32; mask *= 2) {
      lowest += __shfl_xor_sync(~0u, lowest, mask);
    }
    if (first % 32 < kHeads) lows[first / 32][first % 32] = lowest;
    list_planes();
    __syncthreads();
    if (first < kHeads) low[first] = sum_of_warps(lows, first);
    __syncthreads();
  }

 private:
  // Of a head with the centroids of a part.
  struct Products {
    float values[kCodeEntries], low = INFINITY, high = -INFINITY;

    Products() = default;
    __device__ float span() const { return high - low; }
    __device__ Products(const __nv_bfloat16* q, float scale, uint32_t group,
                        const Centroids& centroids, uint32_t i) {
      const uint32_t head = i % kHeads, part = i / kHeads;
      float2 two = {};
      if (head < group) {
        two = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(q + head * D + 2 * part));
      }
#pragma unroll
      for (uint32_t c = 0; c < kCodeEntries; c += 4) {
        const float4 x = centroids.x[c / 4], y = centroids.y[c / 4];
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
    constexpr uint32_t kShare = kPlanes <= 32 ? 8 : 4;  // threads of a plane
    static_assert(kPlanes * kShare <= kThreads && kPlanes * kShare % 32 == 0);
    const uint32_t plane = threadIdx.x / kShare;
    if (plane >= kPlanes) return;
    float total = 0.0f, up_to = 0.0f;  // of the planes that tell no more than this one
    uint32_t more = 0;
#pragma unroll
    for (uint32_t other = threadIdx.x % kShare; other < kPlanes; other += kShare) {
      const bool is_more =
          told[other] > told[plane] || (told[other] == told[plane] && other < plane);
      total += told[other];
      up_to += is_more ? 0.0f : told[other];
      more += is_more ? 1 : 0;
    }
    for (uint32_t mask = 1; mask < kShare; mask *= 2) {
      total += __shfl_xor_sync(~0u, total, mask);
      up_to += __shfl_xor_sync(~0u, up_to, mask);
      more += __shfl_xor_sync(~0u, more, mask);
    }
    const bool used = more == 0 || !(up_to <= skip * total);
    if (used && threadIdx.x % kShare == 0) atomicOr(&masks[plane / 32], 1u << plane % 32);
  }

  __device__ static float sum_of_warps(const float (&values)[kWarps][kHeads], uint32_t head) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t warp = 0; warp < kWarps; ++warp) sum += values[warp][head];
    return sum;
  }

  __device__ float widest_step(uint32_t head) const {
    float widest = 0.0f;
#pragma unroll
    for (uint32_t warp = 0; warp < kWarps; ++warp) widest = fmaxf(widest, spans[warp][head]);
    return widest > 0.0f ? widest / kLargestEntry : 1.0f;
  }

  // One more of 16 planes where their number is odd, as planes are summed up by twos.
  __device__ void even_out() {
    if (threadIdx.x >= 2) return;
    uint32_t mask = masks[threadIdx.x];
    for (uint32_t sixteen = 0xffffu; sixteen != 0; sixteen <<= 16) {
      const uint32_t unused = ~mask & sixteen;
      if (__popc(mask & sixteen) % 2 != 0) mask |= unused & (~unused + 1);
    }
    masks[threadIdx.x] = mask;
  }

  // Where codes of planes that are used lie.
  __device__ void list_planes() {
    if (threadIdx.x >= kPlanes || !uses(threadIdx.x)) return;
    offsets[place(threadIdx.x)] = threadIdx.x * kCodeBlock;
  }

  // Four neighbouring lanes have the heads of a word. All lanes of a warp call.
  __device__ void write(const Products& products, uint32_t head, uint32_t part, uint32_t group) {
    const float levels = head < group ? 1.0f / step[head] : 0.0f;
    uint32_t bytes[4] = {};
#pragma unroll
    for (uint32_t c = 0; c < kCodeEntries; ++c) {
      const float level = (products.values[c] - products.low) * levels + 0.5f;
      const float entry = level > 0.0f ? fminf(level, kLargestEntry) : 0.0f;
      bytes[c / 4] |= static_cast<uint32_t>(entry) << c % 4 * 8;
    }
    uint32_t words[4];  // the lane's are 4 (head % 4) and the next
    gather_words(bytes, words);
    if (!uses(part / 2)) return;
    uint32_t* to = entries[head / 4][place(part / 2)][part % 2] + head % 4 * 4;
    *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
  }

  // From a head's bytes of 16 entries to four entries of four heads.
  __device__ static void gather_words(const uint32_t (&bytes)[4], uint32_t (&words)[4]) {
    const uint32_t own = threadIdx.x % 4;
    uint32_t heads[4];  // bytes of the lane's entries
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      const uint32_t got = __shfl_xor_sync(~0u, select(bytes, own ^ step), step);
#pragma unroll
      for (uint32_t head = 0; head < 4; ++head) {
        if (head == (own ^ step)) heads[head] = got;
      }
    }
    const uint32_t low[2] = {__byte_perm(heads[0], heads[1], 0x5140),
                             __byte_perm(heads[2], heads[3], 0x5140)};
    const uint32_t high[2] = {__byte_perm(heads[0], heads[1], 0x7362),
                              __byte_perm(heads[2], heads[3], 0x7362)};
    words[0] = __byte_perm(low[0], low[1], 0x5410);
    words[1] = __byte_perm(low[0], low[1], 0x7632);
    words[2] = __byte_perm(high[0], high[1], 0x5410);
    words[3] = __byte_perm(high[0], high[1], 0x7632);
  }
  __device__ static uint32_t select(const uint32_t (&values)[4], uint32_t index) {
    const uint32_t low = index % 2 == 0 ? values[0] : values[1];
    const uint32_t high = index % 2 == 0 ? values[2] : values[3];
    return index < 2 ? low : high;
  }
};

}  // namespace reprise::kernels::cuda

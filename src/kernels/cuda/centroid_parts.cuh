// Parts of keys and queries as what makes, fills and searches lists of keys sees them.
#pragma once

#include <type_traits>

#include "kernels/cuda/centroid_lists.h"
#include "kernels/cuda/kv_load.cuh"

namespace reprise::kernels::cuda {

/// f(dims of a part as a constant).
template <typename F>
cudaError_t with_list_dims(const ListShape& shape, F&& f) {
  if (shape.centroids > kMostCentroids) return cudaErrorNotSupported;
  switch (shape.dims()) {
    case 8:
      return f(std::integral_constant<int, 8>());
    case 12:
      return f(std::integral_constant<int, 12>());
    case 16:
      return f(std::integral_constant<int, 16>());
    case 32:
      return f(std::integral_constant<int, 32>());
    default:
      return cudaErrorNotSupported;
  }
}

template <int D>
__device__ float dot(const float (&x)[D], const float* y) {
  float sum = 0.0f;
#pragma unroll
  for (int d = 0; d < D; ++d) sum += x[d] * y[d];
  return sum;
}

/// A part of a token's key.
template <int D>
__device__ void load_part(const PagedKv& kv, const uint32_t* pages, uint32_t token, uint32_t head,
                          uint32_t part, float (&x)[D]) {
  const unsigned char* tile = key_tile(kv, pages[token / kPageTokens], head);
#pragma unroll
  for (int d = 0; d < D; d += 2) {
    const float2 two = load_two(kv.type, tile, kv.head_dim, token % kPageTokens,
                                part * D + static_cast<uint32_t>(d));
    x[d] = two.x;
    x[d + 1] = two.y;
  }
}

/// A list as a heap, see ListIndex.
class ListHeap {
 public:
  __device__ ListHeap(const ListIndex& index, size_t list, uint32_t length)
      : keys_(index.keys + list * index.stride),
        scores_(index.scores + list * index.stride),
        length_(length) {}

  __device__ uint32_t* keys() const { return keys_; }
  __device__ __half* scores() const { return scores_; }

  /// In place of the worst one, where it is better. NaN never is.
  __device__ void offer(uint32_t key, __half score) {
    if (length_ == 0 || !(better(score, key, scores_[0], keys_[0]))) return;
    sink(0, key, score);
  }

  /// Moves an entry down from place i, whose own is lost.
  __device__ void sink(uint32_t i, uint32_t key, __half score) {
    for (uint32_t child = 2 * i + 1; child < length_; child = 2 * i + 1) {
      uint32_t own = keys_[child];
      __half value = scores_[child];
      if (child + 1 < length_) {
        const uint32_t other = keys_[child + 1];
        const __half other_value = scores_[child + 1];
        if (better(value, own, other_value, other)) {
          ++child;
          own = other;
          value = other_value;
        }
      }
      if (!better(score, key, value, own)) break;
      keys_[i] = own;
      scores_[i] = value;
      i = child;
    }
    keys_[i] = key;
    scores_[i] = score;
  }

 private:
  __device__ static bool better(__half a, uint32_t a_key, __half b, uint32_t b_key) {
    const float x = __half2float(a), y = __half2float(b);
    return x > y || (x == y && a_key < b_key);
  }

  uint32_t* keys_;
  __half* scores_;
  uint32_t length_;
};

}  // namespace reprise::kernels::cuda

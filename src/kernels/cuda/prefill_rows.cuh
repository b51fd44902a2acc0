// The softmax of query rows of prefill whose logits lie in tensor core accumulators.
#pragma once

#include <cmath>

#include "kernels/cuda/prefill_tiles.cuh"

namespace reprise::kernels::cuda::prefill {

inline constexpr float kSlack = 8.0f;  // log2 by which a logit may exceed its row's base
inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

// From four words of each lane of a quad, word i of lane l to word l of lane i.
__device__ inline void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

// The two rows that a lane has in an accumulator of 16 rows: value [j][i] lies in row lane / 4 +
// i / 2 * 8 and column 8 j + lane % 4 * 2 + i % 2.
class RowPair {
 public:
  // first: query row of the accumulator's row 0.
  __device__ RowPair(const Params& p, const Tile& tile, uint32_t first) {
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t row = first + lane() / 4 + r * 8, known = min(row, tile.end - 1);
      const int32_t position = tile.position(p, known);
      index_[r] = tile.out_index(p, known);
      valid_[r] = row < tile.end;
      key_begin_[r] = max(p.first_key(position), tile.key_begin);
      const int32_t end = min(p.end_key(position), tile.key_end);
      keys_[r] = static_cast<uint32_t>(max(end - key_begin_[r], 0));
    }
  }

  // Turns products q k of keys [first, first + 8 N) into weights relative to the rows' bases. When
  // true, a base moved: sums of earlier weights are to be scaled by factor of their row.
  template <int N>
  __device__ bool weigh(const Params& p, int32_t first, float (&x)[N][4], float (&factor)[2]) {
    float unit = p.scale * kLog2E;
    if (p.soft_cap > 0.0f) {
      cap(p, x);
      unit = kLog2E;
    }
    const auto row_end = static_cast<int32_t>(key_begin_[0] + keys_[0]);
    if (__any_sync(~0u, first + 8 * N > row_end || first < key_begin_[1])) mask(first, x);
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) top[i / 2] = fmaxf(top[i / 2], x[j][i]);
    }
    const bool moved =
        __any_sync(~0u, top[0] * unit > base_[0] + kSlack || top[1] * unit > base_[1] + kSlack);
    if (moved) move_bases(top, unit, factor);
    float from[2];
    for (int r = 0; r < 2; ++r) from[r] = base_[r] == -INFINITY ? 0.0f : -base_[r];
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[j][i] = exp2_fast(fmaf(x[j][i], unit, from[i / 2]));
        total_[i / 2] += x[j][i];
      }
    }
    return moved;
  }

  // sums: of weights times values, in units; N = head_dim / 8.
  template <int N>
  __device__ void write(const Params& p, const float (&sums)[N][4], float unit) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      for (int mask = 1; mask < 4; mask *= 2) total_[r] += __shfl_xor_sync(~0u, total_[r], mask);
      const float scale = total_[r] > 0.0f ? unit / total_[r] : 0.0f;  // of a part, all hidden
      if (p.f32_out) {
        write_f32<N>(static_cast<float*>(p.out), r, scale, sums);
      } else {
        write_bf16<N>(static_cast<__nv_bfloat16*>(p.out), r, scale, sums);
      }
      if (valid_[r] && lane() % 4 == 0) {
        p.lse[index_[r]] = (base_[r] + log2f(total_[r])) * kLn2;
      }
    }
  }

 private:
  __device__ static uint32_t lane() { return threadIdx.x % 32; }

  template <int N>
  __device__ static void cap(const Params& p, float (&x)[N][4]) {
    const float unit = p.scale / p.soft_cap * 2 * kLog2E;
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // tanh(y) = 1 - 2 / (1 + exp(2 y))
        x[j][i] = p.soft_cap - __fdividef(2.0f * p.soft_cap, 1.0f + exp2_fast(x[j][i] * unit));
      }
    }
  }

  template <int N>
  __device__ void mask(int32_t first, float (&x)[N][4]) const {
    const int32_t key = first + static_cast<int32_t>(lane() % 4) * 2;
    const int32_t offset[2] = {key - key_begin_[0], key - key_begin_[1]};
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto nth = static_cast<uint32_t>(offset[i / 2] + j * 8 + i % 2);
        if (nth >= keys_[i / 2]) x[j][i] = -INFINITY;
      }
    }
  }

  __device__ void move_bases(const float (&top)[2], float unit, float (&factor)[2]) {
    for (int r = 0; r < 2; ++r) {
      float base = top[r] * unit;
      for (int mask = 1; mask < 4; mask *= 2) {
        base = fmaxf(base, __shfl_xor_sync(~0u, base, mask));
      }
      base = fmaxf(ceilf(base), base_[r]);  // whole: weights are rounded alike whatever it is
      factor[r] = base == -INFINITY ? 1.0f : exp2_fast(base_[r] - base);
      base_[r] = base;
      total_[r] *= factor[r];
    }
  }

  template <int N>
  __device__ void write_f32(float* out, int r, float scale, const float (&sums)[N][4]) const {
    if (!valid_[r]) return;
    float* to = out + index_[r] * (8 * N) + lane() % 4 * 2;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      *reinterpret_cast<float2*>(to + j * 8) = {sums[j][2 * r] * scale, sums[j][2 * r + 1] * scale};
    }
  }

  template <int N>
  __device__ void write_bf16(__nv_bfloat16* out, int r, float scale,
                             const float (&sums)[N][4]) const {
    __nv_bfloat16* to = out + index_[r] * (8 * N) + lane() % 4 * 8;
#pragma unroll
    for (int j = 0; j < N; j += 4) {
      uint32_t words[4];
      for (int k = 0; k < 4; ++k) {
        words[k] = pack<__nv_bfloat16>(sums[j + k][2 * r] * scale, sums[j + k][2 * r + 1] * scale);
      }
      transpose_quad(words);
      if (valid_[r]) {
        *reinterpret_cast<uint4*>(to + j * 8) = {words[0], words[1], words[2], words[3]};
      }
    }
  }

  size_t index_[2];  // in [parts, rows, n_head]
  bool valid_[2];
  int32_t key_begin_[2];
  uint32_t keys_[2];
  float base_[2] = {-INFINITY, -INFINITY};  // log2
  float total_[2] = {0.0f, 0.0f};           // over this lane's columns
};

// The left operand of the product of weights and values, 16 keys a step.
template <typename T, int N>
__device__ void pack_weights(const float (&x)[N][4], uint32_t (&weights)[N / 2][4]) {
#pragma unroll
  for (int step = 0; step < N / 2; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&from)[4] = x[2 * step + i / 2];
      weights[step][i] = pack<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
    }
  }
}

template <int N>
__device__ void scale_rows(float (&sums)[N][4], const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] *= factor[i / 2];
  }
}

}  // namespace reprise::kernels::cuda::prefill

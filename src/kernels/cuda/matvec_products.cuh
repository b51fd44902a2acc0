// What a warp multiplies: weights that it has read by its share of x.
#pragma once

#include "kernels/cuda/matvec_params.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

// What a warp has summed up of a tile: W x^T of 16 rows and 8 rows of x. load() takes a read out of
// shared memory, so that the next one may come in its place; add() multiplies it by the index-th
// read's columns of x. Columns of tensor cores that have no row of x repeat the last; nobody reads
// their sums.
//
// Codes: they are the first operand, the high and low bytes of x two second ones.
template <class F>
class Products {
 public:
  struct Loaded {
    uint4 top, bottom;  // rows g and g + 8
    RowScales<F> top_scales, bottom_scales;
  };

  __device__ Products(const Part& part, uint32_t batch, const unsigned char* memory)
      : x_(memory + part.input_at + min(group(), batch - 1) * part.input_stride + lane() % 4 * 16),
        units_(reinterpret_cast<const float*>(memory + part.units_at) + lane() % 4 * 2),
        sums_(reinterpret_cast<const float*>(memory + part.sums_at) + lane() % 4 * 2) {}

  __device__ static Loaded load(const unsigned char* read) {
    const unsigned char *codes = read + lane() * 16,
                        *scales = read + kUnitBytes + group() * F::kChunkScaleBytes,
                        *factors = read + F::kFactorsAt + group() * 4;
    return {*reinterpret_cast<const uint4*>(codes),
            *reinterpret_cast<const uint4*>(codes + kUnitBytes / 2), RowScales<F>(scales, factors),
            RowScales<F>(scales + 8 * F::kChunkScaleBytes, factors + 8 * 4)};
  }

  __device__ void reset() {
    for (float& v : v_) v = 0.0f;
  }

  __device__ void add(const Loaded& codes, uint32_t index) {
    constexpr int kBlocks = F::kChunkColumns / 32, kGroups = 32 / F::kValue.group;
    index *= kBlocks;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      uint32_t t[2], b[2];
      code_words<F>(codes.top, block, t);
      code_words<F>(codes.bottom, block, b);
      const auto x = *reinterpret_cast<const uint4*>(x_ + (index + block) * kInputBlockBytes);
      const auto unit = *reinterpret_cast<const float2*>(units_ + (index + block) * kMatvecBatch);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        int high[4] = {}, low[4] = {};
        if constexpr (kGroups == 1) {
          const uint32_t a[4] = {t[0], b[0], t[1], b[1]};
          multiply_codes(high, a, {x.x, x.y});
          multiply_codes(low, a, {x.z, x.w});
        } else {
          const uint32_t a[2] = {t[i], b[i]};
          multiply_codes(high, a, word_of(x, i));
          multiply_codes(low, a, word_of(x, 2 + i));
        }
        const int group = block * kGroups + i;
        const float2 top = codes.top_scales.get(group), bottom = codes.bottom_scales.get(group);
        add_scaled(high, low, unit, top.x, bottom.x);
        if constexpr (F::kValue.has_min) {
          add_minima((index * kGroups + group) * kMatvecBatch, top.y, bottom.y);
        }
      }
    }
  }

  // sums [batch][16 rows]
  __device__ void store(float* sums, uint32_t batch) const {
    const uint32_t n = lane() % 4 * 2;
    float* to = sums + n * kTileRows + group();
    if (n < batch) {
      to[0] = v_[0];
      to[8] = v_[2];
    }
    if (n + 1 < batch) {
      to[kTileRows] = v_[1];
      to[kTileRows + 8] = v_[3];
    }
  }

 private:
  __device__ static uint32_t lane() { return threadIdx.x % 32; }
  __device__ static uint32_t group() { return lane() / 4; }  // a row of x, a row of each half tile

  __device__ void add_scaled(const int (&high)[4], const int (&low)[4], float2 unit, float top,
                             float bottom) {
    const auto product = [&](int i) { return static_cast<float>(high[i] * 256 + low[i]); };
    v_[0] += product(0) * (unit.x * top);
    v_[1] += product(1) * (unit.y * top);
    v_[2] += product(2) * (unit.x * bottom);
    v_[3] += product(3) * (unit.y * bottom);
  }
  __device__ void add_minima(uint32_t sums_at, float top, float bottom) {
    const auto sums = *reinterpret_cast<const float2*>(sums_ + sums_at);
    v_[0] += top * sums.x;
    v_[1] += top * sums.y;
    v_[2] += bottom * sums.x;
    v_[3] += bottom * sums.y;
  }

  const unsigned char* x_;
  const float* units_;
  const float* sums_;
  float v_[4];
};

// Bf16 and F16: x and what rounding left are 16 rows of the first operand, 8 rows of weights the
// second one, all as they lie in shared memory.
template <class F>
requires(!F::kQuantized) class Products<F> {
 public:
  struct Loaded {
    uint4 pieces[2][2];  // [chunk][rows g, rows g + 8]
  };

  __device__ Products(const Part& part, uint32_t batch, const unsigned char* memory)
      : x_(memory + part.input_at + min(group(), batch - 1) * part.input_stride + lane() % 4 * 16) {
  }

  __device__ static Loaded load(const unsigned char* read) {
    const auto* at = reinterpret_cast<const uint4*>(read) + lane();
    constexpr uint32_t kHalf = kUnitBytes / 2 / 16, kChunk = kChunkStride / 16;
    return {{{at[0], at[kHalf]}, {at[kChunk], at[kChunk + kHalf]}}};
  }

  __device__ void reset() {
    for (int i = 0; i < 16; ++i) v_[i / 8][i / 4 % 2][i % 4] = 0.0f;
  }

  __device__ void add(const Loaded& weights, uint32_t index) {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const auto x = *reinterpret_cast<const uint4*>(x_ + (index * 2 + chunk) * 128 + step * 64);
        const uint32_t a[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4& piece = weights.pieces[chunk][half];
          multiply_pairs(v_[chunk][half], a, word_of(piece, 2 * step),
                         word_of(piece, 2 * step + 1));
        }
      }
    }
  }

  __device__ void store(float* sums, uint32_t batch) const {
    if (group() >= batch) return;
    float* to = sums + group() * kTileRows + lane() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto &v = v_[0][half], &w = v_[1][half];
      to[half * 8] = (v[0] + w[0]) + (v[2] + w[2]);
      to[half * 8 + 1] = (v[1] + w[1]) + (v[3] + w[3]);
    }
  }

 private:
  __device__ static uint32_t lane() { return threadIdx.x % 32; }
  __device__ static uint32_t group() { return lane() / 4; }  // a row of x, a row of each half tile

  // F16 is a sum of two bf16, which is exact.
  __device__ static void multiply_pairs(float (&d)[4], const uint32_t (&x)[4], uint32_t first,
                                        uint32_t second) {
    if constexpr (F::kValue.codes == Codes::kF16) {
      uint32_t high[2], low[2];
      split(first, &high[0], &low[0]);
      split(second, &high[1], &low[1]);
      multiply<__nv_bfloat16>(d, x, high);
      multiply<__nv_bfloat16>(d, x, low);
    } else {
      const uint32_t pairs[2] = {first, second};
      multiply<__nv_bfloat16>(d, x, pairs);
    }
  }

  __device__ static void split(uint32_t halves, uint32_t* high, uint32_t* low) {
    const float2 v = __half22float2(reinterpret_cast<const __half2&>(halves));
    *high = pack<__nv_bfloat16>(v.x, v.y);
    *low = pack<__nv_bfloat16>(v.x - low_float(*high), v.y - high_float(*high));
  }

  const unsigned char* x_;
  float v_[2][2][4];  // [chunk][half tile]: x and the rest by two rows
};

// F32 weights: multiplied in float.
template <>
class Products<Format<kFormatOf<TensorType::kF32>>> {
  using F = Format<kFormatOf<TensorType::kF32>>;

 public:
  struct Loaded {
    float4 pieces[2][2];  // [chunk][rows g, rows g + 8]
  };

  __device__ Products(const Part& part, uint32_t batch, const unsigned char* memory)
      : x_(memory + part.input_at + threadIdx.x % 4 * 16),
        stride_(part.input_stride),
        batch_(batch) {}

  __device__ void reset() {
    for (auto& half : v_) {
      for (float& v : half) v = 0.0f;
    }
  }
  __device__ static Loaded load(const unsigned char* read) {
    const auto* at = reinterpret_cast<const float4*>(read) + threadIdx.x % 32;
    constexpr uint32_t kHalf = kUnitBytes / 2 / 16, kChunk = kChunkStride / 16;
    return {{{at[0], at[kHalf]}, {at[kChunk], at[kChunk + kHalf]}}};
  }
  __device__ void add(const Loaded& weights, uint32_t index) {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      const float4 &top = weights.pieces[chunk][0], &bottom = weights.pieces[chunk][1];
      const unsigned char* columns = x_ + (index * 2 + chunk) * kChunkBytes;
#pragma unroll
      for (uint32_t n = 0; n < kMatvecBatch; ++n) {
        if (n >= batch_) continue;
        const auto x = *reinterpret_cast<const float4*>(columns + n * stride_);
        v_[0][n] += top.x * x.x + top.y * x.y + top.z * x.z + top.w * x.w;
        v_[1][n] += bottom.x * x.x + bottom.y * x.y + bottom.z * x.z + bottom.w * x.w;
      }
    }
  }
  __device__ void store(float* sums, uint32_t batch) const {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
      for (uint32_t n = 0; n < kMatvecBatch; ++n) {
        float sum = v_[half][n];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const uint32_t row = half * 8 + threadIdx.x % 32 / 4;
        if (n < batch && threadIdx.x % 4 == 0) sums[n * kTileRows + row] = sum;
      }
    }
  }

 private:
  const unsigned char* x_;
  uint32_t stride_, batch_;
  float v_[2][kMatvecBatch];
};

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda

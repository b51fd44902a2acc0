// Units of weights: fetched by a warp, multiplied with x by tensor cores.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/matvec_params.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

// The units that a warp multiplies, kStages of them on their way. All lanes call.
class UnitStream {
 public:
  __device__ UnitStream(const Part& part, const Place& place, unsigned char* ring)
      : part_(part),
        place_(place),
        ring_(ring),
        members_(part.members),
        row_bytes_(size_t{part.w.chunks} * kChunkBytes) {}

  template <class F>
  __device__ void start() {
    begin_tile<F>();
    for (uint32_t i = 0; i < kStages; ++i) fetch<F>();
  }

  // The oldest unit, when it is there.
  __device__ const unsigned char* wait() const {
    wait_for_copy_groups<kStages - 1>();
    __syncwarp();
    return ring_ + slot_;
  }

  // Asks for the next unit, if there is one, where the oldest was, which all lanes have read.
  template <class F>
  __device__ void fetch() {
    __syncwarp();
    if (chunk_ < end_) {
      copy<F>(ring_ + slot_);
      chunk_ += members_;
      if (chunk_ >= end_) begin_tile<F>();
    }
    end_copy_group();
    slot_ = slot_ == (kStages - 1) * F::kReadBytes ? 0 : slot_ + F::kReadBytes;
  }

 private:
  // The first unit of the next round.
  template <class F>
  __device__ void begin_tile() {
    const uint32_t lane = threadIdx.x % 32;
    const DeviceWeights& w = part_.w;
    const uint32_t tile = round_ < part_.rounds ? place_.tile(part_, round_) : w.tiles;
    ++round_;
    chunk_ = place_.begin + place_.member;
    end_ = tile < w.tiles ? place_.end : 0;
    const size_t unit = size_t{tile} * w.chunks + chunk_;
    if constexpr (F::kQuantized) {
      codes_ = w.codes + unit * kUnitBytes + lane * 16;
      scales_ = w.scales + (unit * kScaleCopies<F> + lane) * 16;
      const size_t factors = size_t{tile} * (w.chunks / F::kFactorChunks);
      factors_ = w.factors + factors * kFactorBytes + (lane - kScaleCopies<F>)*16;
    } else {
      const size_t row = size_t{tile} * kTileRows + lane / 4;
      codes_ = w.codes + row * row_bytes_ + chunk_ * kChunkBytes + lane % 4 * 16;
    }
  }

  template <class F>
  __device__ void copy(unsigned char* to) {
    const uint32_t lane = threadIdx.x % 32;
    constexpr uint32_t kStep = F::kQuantized ? kUnitBytes : kChunkBytes;
    // Bytes from a row to the eighth after it.
    const size_t next_rows = F::kQuantized ? kUnitBytes / 2 : row_bytes_ * (kTileRows / 2);
    copy_16_bytes(to + lane * 16, codes_);
    copy_16_bytes(to + kUnitBytes / 2 + lane * 16, codes_ + next_rows);
    codes_ += members_ * kStep;
    if constexpr (F::kQuantized) {
      const unsigned char* from = scales_;
      if constexpr (F::kValue.super) {
        const unsigned char* factors = factors_ + chunk_ / F::kFactorChunks * kFactorBytes;
        if (lane >= kScaleCopies<F>) from = factors;
      }
      constexpr uint32_t kFactorCopies = F::kValue.super ? kFactorBytes / 16 : 0;
      if (lane < kScaleCopies<F> + kFactorCopies) {
        copy_16_bytes(to + kUnitBytes + lane * 16, from);
      }
      scales_ += members_ * kScaleCopies<F> * 16;
    }
  }

  // Lanes that copy scales.
  template <class F>
  static constexpr uint32_t kScaleCopies = kTileRows* F::kChunkScaleBytes / 16;

  const Part& part_;
  const Place& place_;
  unsigned char* ring_;
  uint32_t members_;
  size_t row_bytes_;                          // of codes
  uint32_t round_ = 0, chunk_ = 0, end_ = 0;  // of the next unit to ask for
  const unsigned char *codes_ = nullptr, *scales_ = nullptr, *factors_ = nullptr;  // of this lane
  uint32_t slot_ = 0;  // of the oldest unit
};

// What a warp has summed up of a tile: W x^T of 16 rows and 8 rows of x.
template <class F>
class Products {
 public:
  // Columns of tensor cores that have no row of x repeat the last; nobody reads their sums.
  __device__ Products(const Part& part, uint32_t batch, const unsigned char* memory)
      : x_(memory + part.input_at + min(group(), batch - 1) * part.input_stride + lane() % 4 * 16),
        sums_(reinterpret_cast<const float*>(memory + part.sums_at) + lane() % 4 * 2) {}

  __device__ void reset() {
    for (float& v : v_) v = 0.0f;
  }
  // chunk: from the start of the slice.
  __device__ void add(const unsigned char* unit, uint32_t chunk) {
    const auto top = *reinterpret_cast<const uint4*>(unit + lane() * 16);
    const auto bottom = *reinterpret_cast<const uint4*>(unit + kUnitBytes / 2 + lane() * 16);
    if constexpr (F::kQuantized) {
      add_codes(unit, top, bottom, chunk);
    } else if constexpr (F::kValue.codes == Codes::kF16) {
      add_halves(top, bottom, chunk);
    } else {
      const uint4 high = x_of(chunk, 0), low = x_of(chunk, 64);
      for (int step = 0; step < 2; ++step) {
        const uint32_t a[4] = {word_of(top, 2 * step), word_of(bottom, 2 * step),
                               word_of(top, 2 * step + 1), word_of(bottom, 2 * step + 1)};
        multiply_both(v_, a, high, low, step);
      }
    }
  }
  __device__ float4 result() const { return {v_[0], v_[1], v_[2], v_[3]}; }

 private:
  static constexpr bool kNeedsSums = F::kBiased || F::kValue.has_min;

  __device__ static uint32_t lane() { return threadIdx.x % 32; }
  __device__ static uint32_t group() { return lane() / 4; }  // a row of x, a row of each half tile

  // Slots 0 to 7 of 32 columns; rest: 0 rounded, 64 what rounding left.
  __device__ uint4 x_of(uint32_t block, uint32_t rest) const {
    return *reinterpret_cast<const uint4*>(x_ + block * 128 + rest);
  }

  __device__ static void multiply_one(float (&d)[4], const uint32_t (&a)[4], const uint4& x,
                                      int step) {
    const uint32_t b[2] = {word_of(x, 2 * step), word_of(x, 2 * step + 1)};
    multiply<__nv_bfloat16>(d, a, b);
  }
  __device__ static void multiply_both(float (&d)[4], const uint32_t (&a)[4], const uint4& high,
                                       const uint4& low, int step) {
    multiply_one(d, a, high, step);
    multiply_one(d, a, low, step);
  }

  __device__ void add_codes(const unsigned char* unit, const uint4& top, const uint4& bottom,
                            uint32_t chunk) {
    constexpr int kBlocks = F::kChunkColumns / 32, kSteps = 32 / F::kValue.group;
    const unsigned char *scales = unit + kUnitBytes + group() * F::kChunkScaleBytes,
                        *factors = unit + F::kFactorsAt + group() * 4;
    const RowScales<F> top_scales(scales, factors);
    const RowScales<F> bottom_scales(scales + 8 * F::kChunkScaleBytes, factors + 8 * 4);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      uint32_t t[4], b[4];
      code_pairs<F>(top, block, t);
      code_pairs<F>(bottom, block, b);
      const uint4 high = x_of(chunk * kBlocks + block, 0), low = x_of(chunk * kBlocks + block, 64);
      float d[kSteps][4];
      float2 sums[kSteps];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        sums[i] = sums_of(chunk * kBlocks * kSteps + block * kSteps + i);
        const float2 zero = zero_of(sums[i]);
        d[i][0] = d[i][2] = zero.x;
        d[i][1] = d[i][3] = zero.y;
      }
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint32_t a[4] = {t[2 * step], b[2 * step], t[2 * step + 1], b[2 * step + 1]};
        multiply_both(d[step % kSteps], a, high, low, step);
      }
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int index = block * kSteps + i;
        add_scaled(d[i], top_scales.get(index), bottom_scales.get(index), sums[i]);
      }
    }
  }

  // Sums of a scale's columns of two rows of x, times Part::sum_factor.
  __device__ float2 sums_of(uint32_t index) const {
    if constexpr (!kNeedsSums) return {};
    return *reinterpret_cast<const float2*>(sums_ + index * kMatvecBatch);
  }

  // What sums of codes begin with, so that weights of 0 add nothing.
  __device__ static float2 zero_of(float2 sums) {
    if constexpr (!F::kBiased) return {};
    if constexpr (!F::kValue.has_min) return sums;
    return {-F::kZero * sums.x, -F::kZero * sums.y};
  }

  __device__ void add_scaled(const float (&d)[4], float2 top, float2 bottom, float2 sums) {
    if constexpr (F::kValue.has_min) {
      v_[0] += top.y * sums.x;
      v_[1] += top.y * sums.y;
      v_[2] += bottom.y * sums.x;
      v_[3] += bottom.y * sums.y;
    }
    v_[0] += top.x * d[0];
    v_[1] += top.x * d[1];
    v_[2] += bottom.x * d[2];
    v_[3] += bottom.x * d[3];
  }

  // F16 as a sum of two bf16, which is exact.
  __device__ static void split(uint32_t halves, uint32_t* high, uint32_t* low) {
    const float2 v = __half22float2(reinterpret_cast<const __half2&>(halves));
    *high = pack<__nv_bfloat16>(v.x, v.y);
    *low = pack<__nv_bfloat16>(v.x - low_float(*high), v.y - high_float(*high));
  }

  __device__ void add_halves(const uint4& top, const uint4& bottom, uint32_t chunk) {
    const uint4 high = x_of(chunk, 0), low = x_of(chunk, 64);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4], rest[4];
      split(word_of(top, 2 * step), &a[0], &rest[0]);
      split(word_of(bottom, 2 * step), &a[1], &rest[1]);
      split(word_of(top, 2 * step + 1), &a[2], &rest[2]);
      split(word_of(bottom, 2 * step + 1), &a[3], &rest[3]);
      multiply_both(v_, a, high, low, step);
      multiply_one(v_, rest, high, step);
    }
  }

  const unsigned char* x_;
  const float* sums_;
  float v_[4];
};

// F32 weights: multiplied in float.
template <>
class Products<Format<kFormatOf<TensorType::kF32>>> {
 public:
  __device__ Products(const Part& part, uint32_t batch, const unsigned char* memory)
      : x_(memory + part.input_at + threadIdx.x % 4 * 16),
        stride_(part.input_stride),
        batch_(batch) {}

  __device__ void reset() {
    for (auto& half : v_) {
      for (float& v : half) v = 0.0f;
    }
  }
  __device__ void add(const unsigned char* unit, uint32_t chunk) {
    const uint32_t at = threadIdx.x % 32 * 16;
    const auto top = *reinterpret_cast<const float4*>(unit + at);
    const auto bottom = *reinterpret_cast<const float4*>(unit + kUnitBytes / 2 + at);
#pragma unroll
    for (uint32_t n = 0; n < kMatvecBatch; ++n) {
      if (n >= batch_) continue;
      const auto x = *reinterpret_cast<const float4*>(x_ + n * stride_ + chunk * kChunkBytes);
      v_[0][n] += top.x * x.x + top.y * x.y + top.z * x.z + top.w * x.w;
      v_[1][n] += bottom.x * x.x + bottom.y * x.y + bottom.z * x.z + bottom.w * x.w;
    }
  }
  // As tensor cores leave it: rows g and g + 8, columns 2t and 2t + 1.
  __device__ float4 result() const {
    float out[4] = {};
#pragma unroll
    for (int i = 0; i < 2 * static_cast<int>(kMatvecBatch); ++i) {
      const int half = i / kMatvecBatch, n = i % kMatvecBatch;
      float sum = v_[half][n];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (static_cast<int>(threadIdx.x % 4) == n / 2) out[half * 2 + n % 2] = sum;
    }
    return {out[0], out[1], out[2], out[3]};
  }

 private:
  const unsigned char* x_;
  uint32_t stride_, batch_;
  float v_[2][kMatvecBatch];
};

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda

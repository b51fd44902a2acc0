// Brings x into shared memory, normalised (but for the factor of its row) or activated.
#pragma once

#include <type_traits>

#include "kernels/cuda/matvec_params.cuh"
#include "kernels/cuda/row_math.cuh"

namespace reprise::kernels::cuda {

namespace matvec_detail {

// What a lane of a warp takes at a time is four columns of a row: a strip is 128 columns.
constexpr uint32_t kStripColumns = 128;

enum class InputKind { kPlain, kNormed, kGated };

template <InputKind kind>
__device__ float4 transform(const Params& p, float4 x, float4 second) {
  if constexpr (kind == InputKind::kGated) {
    x = {activate(x.x, p.activation), activate(x.y, p.activation), activate(x.z, p.activation),
         activate(x.w, p.activation)};
  }
  if constexpr (kind == InputKind::kPlain) return x;
  return {x.x * second.x, x.y * second.y, x.z * second.z, x.w * second.w};
}

__device__ inline void store_pairs(unsigned char* to, float4 v) {
  const uint2 high = {pack<__nv_bfloat16>(v.x, v.y), pack<__nv_bfloat16>(v.z, v.w)};
  const uint2 low = {pack<__nv_bfloat16>(v.x - low_float(high.x), v.y - high_float(high.x)),
                     pack<__nv_bfloat16>(v.z - low_float(high.y), v.w - high_float(high.y))};
  *reinterpret_cast<uint4*>(to) = {high.x, low.x, high.y, low.y};
}

// As 256 high + low, both int8, times a unit that 8 lanes share; all lanes call.
template <class F>
__device__ void store_codes(const Part& part, unsigned char* memory, uint32_t row, uint32_t column,
                            bool inside, float4 v) {
  constexpr float kLargest = 127 * 256 + 127, kSmallestMagnitude = 1e-30f;
  float magnitude = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  for (uint32_t mask = 1; mask < 8; mask *= 2) {
    magnitude = fmaxf(magnitude, __shfl_xor_sync(~0u, magnitude, mask));
  }
  const float inverse = magnitude < kSmallestMagnitude ? 0.0f : __fdividef(kLargest, magnitude);
  // Whole numbers in the low bits; plus 128, which rounds the high byte.
  const auto code = [&](float x) { return __float_as_uint(x * inverse + (0x1.8p23f + 128)); };
  const uint32_t first = __byte_perm(code(v.x), code(v.y), 0x5140),
                 second = __byte_perm(code(v.z), code(v.w), 0x5140);
  const uint32_t high = __byte_perm(first, second, 0x7632),
                 low = __byte_perm(first, second, 0x5410) ^ 0x80808080u;
  const float unit = magnitude * (1 / kLargest);
  if (inside) {
    const uint32_t four = column % 32 / 4;
    auto* to = reinterpret_cast<uint32_t*>(memory + part.input_at + row * part.input_stride +
                                           column / 32 * kInputBlockBytes + four % 4 * 16);
    to[four / 4] = high;
    to[2 + four / 4] = low;
    if (four == 0) {
      auto* units = reinterpret_cast<float*>(memory + part.units_at);
      units[column / 32 * kMatvecBatch + row] = unit * F::kCodeUnit;
    }
  }
  if constexpr (!F::kValue.has_min) return;
  constexpr uint32_t kOnes = 0x01010101u, kGroup = F::kValue.group;
  int sum = __dp4a(static_cast<int>(high), static_cast<int>(kOnes), 0) * 256 +
            __dp4a(static_cast<int>(low), static_cast<int>(kOnes), 0);
  for (uint32_t mask = 1; mask < kGroup / 4; mask *= 2) {
    sum += __shfl_xor_sync(~0u, sum, mask);
  }
  if (inside && column % kGroup == 0) {
    float* sums = reinterpret_cast<float*>(memory + part.sums_at);
    sums[column / kGroup * kMatvecBatch + row] = static_cast<float>(sum) * unit;
  }
}

// Four columns of x, column from the start of the slice; all lanes call.
template <class F>
__device__ void store_four(const Part& part, unsigned char* memory, uint32_t row, uint32_t column,
                           bool inside, float4 v) {
  if constexpr (F::kQuantized) {
    store_codes<F>(part, memory, row, column, inside, v);
  } else if (inside) {
    unsigned char* to = memory + part.input_at + row * part.input_stride;
    if constexpr (F::kValue.codes == Codes::kF32) {
      *reinterpret_cast<float4*>(to + column * sizeof(float)) = v;
    } else {
      store_pairs(to + column / 32 * 128 + column % 8 * 16 + column % 32 / 8 * 16, v);
    }
  }
}

// The warp's share of the columns, those of the row from first_column to end_column, to to_column
// of the slice and on. A strip of a row is an item, all rows of a strip before the next one.
template <class F, InputKind kind, bool aligned>
__device__ void stage_share(const Params& p, const Part& part, uint32_t first_column,
                            uint32_t end_column, uint32_t to_column, Shared& shared,
                            unsigned char* memory) {
  constexpr uint32_t kAhead = !aligned ? 1 : kind == InputKind::kPlain ? 8 : 4;  // loads
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t strips = (part.share_columns + kStripColumns - 1) / kStripColumns;
  const uint32_t items = strips * p.batch;
  const auto strip_of = [&](uint32_t item) { return item * p.inverse_batch >> 16; };
  float row_squares = 0.0f;  // of the lane-th row
  for (uint32_t first = 0; first < items; first += kAhead) {
    float4 x[kAhead], second[kAhead];
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (first + i >= items) break;
      const uint32_t strip = strip_of(first + i), row = first + i - strip * p.batch;
      const uint32_t column = first_column + strip * kStripColumns + lane * 4;
      x[i] = load_four<aligned>(p.x + row * p.stride, column, end_column);
      if constexpr (kind != InputKind::kPlain) {
        second[i] = load_four<aligned>(p.second + row * p.second_stride, column, end_column);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      if (first + i >= items) break;
      const uint32_t strip = strip_of(first + i), row = first + i - strip * p.batch;
      const uint32_t column = strip * kStripColumns + lane * 4;
      store_four<F>(part, memory, row, to_column + column, column < part.share_columns,
                    transform<kind>(p, x[i], second[i]));
      if constexpr (kind == InputKind::kNormed) {
        const float4 v = x[i];
        const float sum = warp_sum((v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w));
        if (lane == row) row_squares += sum;
      }
    }
  }
  if (kind == InputKind::kNormed && lane < p.batch) {
    shared.squares[threadIdx.x / 32][lane] = row_squares;
  }
}

// What this warp multiplies with its reads.
template <class F>
__device__ void stage_input(const Params& p, const Part& part, const Place& place, Shared& shared,
                            unsigned char* memory) {
  if (place.begin == place.end) return;
  const uint32_t first = place.begin * F::kReadColumns;
  const uint32_t end = min(place.end * F::kReadColumns, p.cols);
  const uint32_t to = (place.begin - place.first) * F::kReadColumns;
  const auto stage = [&](auto kind) {
    if (p.aligned) {
      stage_share<F, decltype(kind)::value, true>(p, part, first, end, to, shared, memory);
    } else {
      stage_share<F, decltype(kind)::value, false>(p, part, first, end, to, shared, memory);
    }
  };
  using enum InputKind;
  if (p.norm) {
    stage(std::integral_constant<InputKind, kNormed>());
  } else if (p.gated) {
    stage(std::integral_constant<InputKind, kGated>());
  } else {
    stage(std::integral_constant<InputKind, kPlain>());
  }
  __syncwarp();
}

}  // namespace matvec_detail

}  // namespace reprise::kernels::cuda

// Weights of device_image.h as floats, 16 bytes of a row at a time.
#pragma once

#include "kernels/cuda/weight_codes.cuh"

namespace reprise::kernels::cuda {

__device__ inline float2 floats(uint32_t pair) { return {low_float(pair), high_float(pair)}; }

template <class F, class Put>
__device__ void dequantize_quantized(const DeviceWeights& w, uint32_t row, uint32_t index,
                                     Put&& put) {
  const uint32_t chunk = index / 4, t = index % 4, tile = row / kTileRows, r = row % kTileRows;
  const size_t unit = size_t{tile} * w.chunks + chunk;
  const auto piece = *reinterpret_cast<const uint4*>(w.codes + unit * kUnitBytes + r * kChunkBytes +
                                                     t * sizeof(uint4));
  const size_t factors = size_t{tile} * (w.chunks / F::kFactorChunks) + chunk / F::kFactorChunks;
  const RowScales<F> scales(w.scales + (unit * kTileRows + r) * F::kChunkScaleBytes,
                            w.factors + factors * kFactorBytes + r * 4);
  for (int block = 0; block < static_cast<int>(F::kChunkColumns / 32); ++block) {
    uint32_t words[2];
    code_words<F>(piece, block, words);
    for (int step = 0; step < 2; ++step) {
      const int column = block * 32 + step * 16;
      const float2 s = scales.get(column / static_cast<int>(F::kValue.group));
      const uint32_t codes = words[step] ^ 0x80808080u;
      const auto weight = [&](int byte) {
        return s.x * (F::kCodeUnit * (plus_2_23(codes, byte) - (0x1p23f + 128))) + s.y;
      };
      put(chunk * F::kChunkColumns + column + t * 4,
          float4{weight(0), weight(1), weight(2), weight(3)});
    }
  }
}

/// Calls put(column, float4) for every four columns of piece index of a row, those of the padding
/// among them. A row has 4 w.chunks pieces.
template <class F, class Put>
__device__ void dequantize_piece(const DeviceWeights& w, uint32_t row, uint32_t index, Put&& put) {
  if constexpr (F::kQuantized) {
    return dequantize_quantized<F>(w, row, index, put);
  } else {
    const auto* codes = reinterpret_cast<const uint4*>(w.codes) + size_t{row} * w.chunks * 4;
    const uint4 piece = codes[index];
    if constexpr (F::kValue.codes == Codes::kF32) {
      put(index * 4, reinterpret_cast<const float4&>(piece));
    } else {
      for (int half = 0; half < 2; ++half) {
        const uint32_t low = word_of(piece, 2 * half), high = word_of(piece, 2 * half + 1);
        float2 a = floats(low), b = floats(high);
        if constexpr (F::kValue.codes == Codes::kF16) {
          a = __half22float2(reinterpret_cast<const __half2&>(low));
          b = __half22float2(reinterpret_cast<const __half2&>(high));
        }
        put(index * 8 + half * 4, float4{a.x, a.y, b.x, b.y});
      }
    }
  }
}

}  // namespace reprise::kernels::cuda

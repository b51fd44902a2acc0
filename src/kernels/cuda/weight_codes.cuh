// Codes and scales of device_image.h in registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>

#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/mma.cuh"

namespace reprise::kernels::cuda {

// What a warp reads at a time and keeps in shared memory. Quantised: a unit's codes, scales and
// factors; else two chunks of 16 rows, kChunkStride apart: in different banks.
inline constexpr uint32_t kChunkStride = kUnitBytes + 64;

constexpr uint32_t read_bytes(const DeviceFormat& format) {
  if (!format.quantized()) return 2 * kChunkStride;
  return kUnitBytes + kTileRows * format.chunk_scale_bytes() + (format.super ? kFactorBytes : 0);
}

// Of codes in registers: those of 4 bits come in the upper half of a byte where that is cheaper.
constexpr float code_unit(const DeviceFormat& format) {
  return format.codes == Codes::kInt4 && !format.has_min ? 1.0f / 16 : 1.0f;
}

template <DeviceFormat format>
struct Format {
  static constexpr DeviceFormat kValue = format;
  static constexpr bool kQuantized = format.quantized();
  static constexpr uint32_t kChunkColumns = format.chunk_columns();
  static constexpr uint32_t kScaleBytes = format.scale_bytes();
  static constexpr uint32_t kChunkScaleBytes = format.chunk_scale_bytes();
  static constexpr uint32_t kFactorChunks = format.factor_chunks();
  static constexpr uint32_t kFactorsAt = kUnitBytes + kTileRows * kChunkScaleBytes;
  static constexpr uint32_t kReadBytes = read_bytes(format);
  static constexpr uint32_t kReadChunks = kQuantized ? 1 : 2;
  static constexpr uint32_t kReadColumns = kReadChunks * kChunkColumns;
  static constexpr float kCodeUnit = code_unit(format);
};

template <TensorType type>
inline constexpr DeviceFormat kFormatOf = device_format(type);

/// Calls f with the Format of a type.
template <class F>
__device__ auto with_format(TensorType type, F&& f) {
  using enum TensorType;
  switch (type) {
    case kF16:
      return f(Format<kFormatOf<kF16>>{});
    case kBF16:
      return f(Format<kFormatOf<kBF16>>{});
    case kQ8_0:
    case kQ5_0:
      return f(Format<kFormatOf<kQ8_0>>{});
    case kQ4_0:
      return f(Format<kFormatOf<kQ4_0>>{});
    case kQ4_1:
      return f(Format<kFormatOf<kQ4_1>>{});
    case kQ5_1:
      return f(Format<kFormatOf<kQ5_1>>{});
    case kQ2_K:
      return f(Format<kFormatOf<kQ2_K>>{});
    case kQ3_K:
      return f(Format<kFormatOf<kQ3_K>>{});
    case kQ4_K:
      return f(Format<kFormatOf<kQ4_K>>{});
    case kQ5_K:
      return f(Format<kFormatOf<kQ5_K>>{});
    case kQ6_K:
      return f(Format<kFormatOf<kQ6_K>>{});
    case kIQ4_NL:
      return f(Format<kFormatOf<kIQ4_NL>>{});
    case kF32:
      break;
  }
  return f(Format<kFormatOf<kF32>>{});
}

static_assert(kFormatOf<TensorType::kQ5_0> == kFormatOf<TensorType::kQ8_0>);

// Values of the IQ4_NL codes, four a word.
struct ValueTable {
  uint32_t words[4] = {};
};
constexpr ValueTable value_table() {
  ValueTable table;
  for (uint32_t code = 0; code < 16; ++code) {
    table.words[code / 4] |= ((kIq4Values[code] - 128u) & 255) << code % 4 * 8;
  }
  return table;
}
inline constexpr ValueTable kValueTable = value_table();

__device__ inline float low_float(uint32_t bf16_pair) { return __uint_as_float(bf16_pair << 16); }
__device__ inline float high_float(uint32_t bf16_pair) {
  return __uint_as_float(bf16_pair & 0xffff0000u);
}

__device__ inline uint32_t word_of(const uint4& piece, int index) {
  return index == 0 ? piece.x : index == 1 ? piece.y : index == 2 ? piece.z : piece.w;
}

// A byte of word plus 2^23.
__device__ inline float plus_2_23(uint32_t word, int byte) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + byte));
}

// Four values from four indices, nibbles of the low half of word.
__device__ inline uint32_t look_up(uint32_t word) {
  constexpr ValueTable t = kValueTable;
  const uint32_t in_half = word & 0x7777u, half = (word >> 1 & 0x4444u) | 0x3210u;
  return __byte_perm(__byte_perm(t.words[0], t.words[1], in_half),
                     __byte_perm(t.words[2], t.words[3], in_half), half);
}

// Slots 0 to 3 and 4 to 7 of the block-th 32 columns of a quantised piece: codes less those of
// weight 0, as int8 in units of Format::kCodeUnit.
template <class F>
__device__ inline void code_words(const uint4& piece, int block, uint32_t (&words)[2]) {
  constexpr uint32_t kSigns = 0x80808080u;
  if constexpr (F::kValue.codes == Codes::kInt4) {
    const uint32_t word = word_of(piece, block);
    if constexpr (F::kValue.has_min) {
      words[0] = word & 0x0f0f0f0fu;
      words[1] = word >> 4 & 0x0f0f0f0fu;
    } else {
      words[0] = masked_flip(word << 4, 0xf0f0f0f0u, kSigns);
      words[1] = masked_flip(word, 0xf0f0f0f0u, kSigns);
    }
  } else if constexpr (F::kValue.codes == Codes::kTable4) {
    const uint32_t word = word_of(piece, block);
    words[0] = look_up(word);
    words[1] = look_up(word >> 16);
  } else {
    constexpr uint32_t kFlips = F::kValue.has_min ? 0 : kSigns;
    words[0] = word_of(piece, 2 * block) ^ kFlips;
    words[1] = word_of(piece, 2 * block + 1) ^ kFlips;
  }
}

// Scales and minima of a row of a chunk.
template <class F>
class RowScales {
 public:
  __device__ RowScales(const unsigned char* scales, const unsigned char* factors) {
    if constexpr (kWords == 1) {
      words_[0] = *reinterpret_cast<const uint32_t*>(scales);
    } else if constexpr (kWords == 2) {
      const auto two = *reinterpret_cast<const uint2*>(scales);
      words_[0] = two.x;
      words_[1] = two.y;
    } else {
      const auto four = *reinterpret_cast<const uint4*>(scales);
      for (int i = 0; i < 4; ++i) words_[i] = word_of(four, i);
    }
    if constexpr (F::kValue.super) {
      factors_ = __half22float2(*reinterpret_cast<const __half2*>(factors));
    }
  }

  // Of a group of the chunk: x scale, y minimum.
  __device__ float2 get(int group) const {
    constexpr int kPerWord = 4 / F::kScaleBytes;
    const uint32_t word = words_[group / kPerWord];
    const int at = group % kPerWord * F::kScaleBytes;
    if constexpr (F::kValue.super) {
      constexpr float zero = 0x1p23f + (F::kValue.has_min ? 0.0f : 128.0f);
      return {factors_.x * (plus_2_23(word, at) - zero),
              F::kValue.has_min ? -(factors_.y * (plus_2_23(word, at + 1) - zero)) : 0.0f};
    } else {
      const auto half = [](uint32_t u) {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(u)));
      };
      return {half(word >> at * 8), F::kValue.has_min ? half(word >> 16) : 0.0f};
    }
  }

 private:
  static constexpr int kWords = F::kChunkScaleBytes / 4;
  uint32_t words_[kWords];
  float2 factors_ = {};
};

}  // namespace reprise::kernels::cuda

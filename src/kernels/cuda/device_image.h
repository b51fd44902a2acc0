// Weights laid out for CUDA kernels. Plain C++: a machine without a device can make and check them.
//
// A row is cut into chunks of 64 bytes of codes, rows into tiles of 16; a chunk of a tile is a
// unit, which a warp reads at a time. Lane 4 g + t holds piece t (16 bytes) of rows g and g + 8.
//   F32, F16, BF16  row-major, rows padded to whole chunks: a piece is 4 or 8 columns side by side
//   quantised       units [tile][chunk] of 1024 bytes, pieces [half][g][t]; a piece holds of each
//   32
//                   columns of its chunk eight, 4t to 4t+3 and 16+4t to 16+4t+3, slots 0 to 7:
//                     8 bits  slot i in byte i
//                     4 bits  slot i in the lower half of byte i, slot 4+i in the upper one;
//                     indices
//                             of a table (IQ4_NL) have slot i in nibble i
// Scales: units [tile][chunk][16 rows] of each group's scale and, if there is one, minimum: f16, or
// of a K-quant u8 (the scale plus 128 where there is no minimum) with f16 factors [tile]
// [256 columns][16 rows][scale, minimum].
// Padding is zero.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/tensor_type.h"
#include "base/thread_pool.h"
#include "kernels/quant.h"

namespace reprise::kernels {
class PackedMatrix;
}

namespace reprise::kernels::cuda {

enum class Codes : uint8_t { kF32, kF16, kBF16, kInt8, kInt4, kTable4 };

inline constexpr uint32_t kTileRows = 16, kChunkBytes = 64, kUnitBytes = kTileRows * kChunkBytes;
inline constexpr uint32_t kFactorBytes = 4 * kTileRows;  // of 256 columns of a tile

struct DeviceFormat {
  Codes codes = Codes::kF32;
  uint32_t group = 0;    // columns of a scale, 16 or 32; 0: not quantised
  bool has_min = false;  // w = scale * code + min; else scale * (code - 8), or - 128 of 8 bits
  bool super = false;    // scales have factors of 256 columns

  constexpr bool quantized() const { return group != 0; }
  constexpr uint32_t chunk_columns() const {
    switch (codes) {
      case Codes::kF32:
        return 16;
      case Codes::kF16:
      case Codes::kBF16:
        return 32;
      case Codes::kInt8:
        return 64;
      case Codes::kInt4:
      case Codes::kTable4:
        return 128;
    }
    return 0;
  }
  // Of a group of a row: 1, 2 or 4.
  constexpr uint32_t scale_bytes() const { return (super ? 1u : 2u) * (has_min ? 2u : 1u); }
  // Of a chunk of a row: 4, 8 or 16.
  constexpr uint32_t chunk_scale_bytes() const {
    return quantized() ? chunk_columns() / group * scale_bytes() : 0;
  }
  constexpr uint32_t factor_chunks() const { return 256 / chunk_columns(); }

  friend constexpr bool operator==(const DeviceFormat&, const DeviceFormat&) = default;
};

constexpr DeviceFormat device_format(TensorType type) {
  if (const auto quant = quant_format(type)) {
    const Codes codes = quant->lookup      ? Codes::kTable4
                        : quant->bits <= 4 ? Codes::kInt4
                                           : Codes::kInt8;
    return {codes, quant->group, quant->has_min, quant->super};
  }
  if (type == TensorType::kF16) return {.codes = Codes::kF16};
  if (type == TensorType::kBF16) return {.codes = Codes::kBF16};
  return {.codes = Codes::kF32};
}

struct DeviceImage {
  TensorType type = TensorType::kF32;
  uint32_t rows = 0, cols = 0, tiles = 0, chunks = 0;
  std::vector<std::byte> codes = {}, scales = {}, factors = {};

  /// Of a tile in each of these planes, in which tiles lie one after the other.
  constexpr std::array<size_t, 3> tile_bytes() const {
    const DeviceFormat format = device_format(type);
    return {size_t{chunks} * kUnitBytes, size_t{chunks} * kTileRows * format.chunk_scale_bytes(),
            format.super ? size_t{cols} / 256 * kFactorBytes : 0};
  }
};

/// Part of a matrix. Rows begin at a multiple of 16, columns of a quantised one at a multiple of
/// 32, of a K-quant at one of 256 (and end so).
struct MatrixPart {
  size_t first_row = 0, rows = 0, first_col = 0, cols = 0;
};

/// All of a matrix.
MatrixPart whole(const PackedMatrix& matrix);

/// What such an image will be; without planes.
DeviceImage image_shape(const PackedMatrix& matrix, const MatrixPart& part);
/// Writes all of tiles [first, first + count), each plane's from planes[i] on. Runs on the pool.
void fill_tiles(const PackedMatrix& matrix, const MatrixPart& part, const DeviceImage& shape,
                size_t first, size_t count, const std::array<std::byte*, 3>& planes,
                ThreadPool& pool);

/// The same weights bit by bit. Runs on the pool.
DeviceImage device_image(const PackedMatrix& matrix, ThreadPool& pool);
DeviceImage device_image(const PackedMatrix& matrix, const MatrixPart& part, ThreadPool& pool);

}  // namespace reprise::kernels::cuda

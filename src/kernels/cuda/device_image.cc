#include "kernels/cuda/device_image.h"

#include <algorithm>
#include <cstring>

#include "kernels/matmul.h"
#include "kernels/packed_layout.h"

namespace reprise::kernels::cuda {
namespace {

static_assert(kTileRows == kPanelRows);

constexpr uint32_t kFactorBlocks = 8;  // blocks of 32 columns that share factors

template <class T>
T load(const std::byte* base, size_t index) {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof value);
  return value;
}

template <class T>
void store(std::byte* base, size_t index, T value) {
  std::memcpy(base + index * sizeof(T), &value, sizeof value);
}

// One tile and the panel it is made from, whose columns it takes from first_block on.
class Tile {
 public:
  Tile(DeviceImage& image, const PackedLayout& layout, const std::byte* panel, size_t first_block,
       size_t tile)
      : image_(image),
        layout_(layout),
        format_(device_format(image.type)),
        panel_(panel),
        first_block_(first_block),
        tile_(tile) {}

  void fill_float_row(size_t lane) {
    std::byte* row = image_.codes.data() + (tile_ * kTileRows + lane) * image_.chunks * kChunkBytes;
    for (size_t block = 0; block < blocks(); ++block) {
      float values[kBlockCols];
      unpack_block(layout_, panel_, first_block_ + block, lane, values);
      const size_t begin = block * kBlockCols, count = std::min(kBlockCols, image_.cols - begin);
      for (size_t i = 0; i < count; ++i) {
        if (format_.codes == Codes::kF32) store(row, begin + i, values[i]);
        if (format_.codes == Codes::kF16) store(row, begin + i, to_f16(values[i]));
        if (format_.codes == Codes::kBF16) store(row, begin + i, to_bf16(values[i]));
      }
    }
  }

  void fill_quantized_row(size_t lane) {
    const QuantFormat quant = *quant_format(image_.type);
    for (size_t block = 0; block < blocks(); ++block) {
      const PackedBlock packed = read_packed(layout_, panel_, first_block_ + block, lane);
      fill_codes(quant, packed.codes, block, lane);
      if (!quant.super) fill_scales(packed.scales[0], block, lane);
    }
    if (!quant.super) return;
    for (size_t first = 0; first < blocks(); first += kFactorBlocks) {
      fill_super_scales(quant, first, lane);
    }
  }

 private:
  size_t blocks() const { return (image_.cols + kBlockCols - 1) / kBlockCols; }
  size_t chunk_blocks() const { return format_.chunk_columns() / kBlockCols; }
  size_t unit(size_t block) const { return tile_ * image_.chunks + block / chunk_blocks(); }

  void fill_codes(const QuantFormat& quant, const uint32_t codes[8], size_t block, size_t lane) {
    const size_t part = block % chunk_blocks();
    std::byte* pieces = image_.codes.data() + unit(block) * kUnitBytes +
                        lane / 8 * (kUnitBytes / 2) + lane % 8 * kChunkBytes;
    // Codes of weight 0 agree among types: 8 of 4 bits, 128 of 8 bits.
    const bool wide = format_.codes == Codes::kInt8;
    const bool shifts = !quant.has_min && !quant.lookup;
    const auto shift = static_cast<uint32_t>(shifts ? (wide ? 128 : 8) - quant.zero() : 0);
    for (size_t t = 0; t < 4; ++t) {
      const uint32_t low = codes[t] + shift * kByteOnes, high = codes[4 + t] + shift * kByteOnes;
      std::byte* piece = pieces + t * 16;
      if (wide) {
        store(piece, part * 2, low);
        store(piece, part * 2 + 1, high);
      } else {
        store(piece, part, nibbles(low, high));
      }
    }
  }

  // Of slots 0 to 3 and 4 to 7.
  uint32_t nibbles(uint32_t low, uint32_t high) const {
    uint32_t word = 0;
    for (uint32_t slot = 0; slot < 8; ++slot) {
      const uint32_t code = (slot < 4 ? low : high) >> 8 * (slot % 4) & 15;
      const uint32_t nibble = format_.codes == Codes::kTable4 ? slot : slot % 4 * 2 + slot / 4;
      word |= code << 4 * nibble;
    }
    return word;
  }

  std::byte* scale_at(size_t block, size_t half, size_t lane) {
    const size_t group = (block % chunk_blocks() * kBlockCols + half * 16) / format_.group;
    return image_.scales.data() + (unit(block) * kTileRows + lane) * format_.chunk_scale_bytes() +
           group * format_.scale_bytes();
  }

  void fill_scales(const GroupScale& scale, size_t block, size_t lane) {
    std::byte* at = scale_at(block, 0, lane);
    store(at, 0, to_f16(scale.scale));
    if (format_.has_min) store(at, 1, to_f16(scale.min));
  }

  // Of 256 columns; see packed_layout.h.
  void fill_super_scales(const QuantFormat& quant, size_t first, size_t lane) {
    const size_t kinds = quant.has_min ? 2 : 1;
    const std::byte* from = panel_ + (first_block_ + first) / kFactorBlocks * scale_bytes(quant);
    const std::byte* integers = from + 2 * kPanelRows * kinds;
    for (size_t g = 0; g < quant.groups(); ++g) {
      const size_t column = g * quant.group;
      std::byte* at = scale_at(first + column / kBlockCols, column % kBlockCols / 16, lane);
      if (quant.bits == 2) {
        const auto both = load<uint8_t>(integers, g * kPanelRows + lane);
        store(at, 0, static_cast<uint8_t>(both & 15));
        store(at, 1, static_cast<uint8_t>(both >> 4));
        continue;
      }
      const auto scale = load<uint8_t>(integers, g * kinds * kPanelRows + lane);
      store(at, 0, static_cast<uint8_t>(quant.has_min ? scale : scale ^ 128));  // i8 to u8
      if (quant.has_min) {
        store(at, 1, load<uint8_t>(integers, (g * kinds + 1) * kPanelRows + lane));
      }
    }
    const size_t supers = blocks() / kFactorBlocks;
    std::byte* factors =
        image_.factors.data() + (tile_ * supers + first / kFactorBlocks) * kFactorBytes + 4 * lane;
    store(factors, 0, load<F16>(from, lane));
    if (quant.has_min) store(factors, 1, load<F16>(from, kPanelRows + lane));
  }

  DeviceImage& image_;
  const PackedLayout& layout_;
  const DeviceFormat format_;
  const std::byte* panel_;
  const size_t first_block_, tile_;
};

}  // namespace

DeviceImage device_image(const PackedMatrix& matrix, ThreadPool& pool) {
  return device_image(matrix, {0, matrix.rows(), 0, matrix.cols()}, pool);
}

DeviceImage device_image(const PackedMatrix& matrix, const MatrixPart& part, ThreadPool& pool) {
  const PackedLayout layout = packed_layout(matrix.type(), matrix.cols());
  const DeviceFormat format = device_format(matrix.type());
  const size_t columns = format.chunk_columns();
  DeviceImage image{.type = matrix.type(),
                    .rows = static_cast<uint32_t>(part.rows),
                    .cols = static_cast<uint32_t>(part.cols),
                    .tiles = static_cast<uint32_t>((part.rows + kTileRows - 1) / kTileRows),
                    .chunks = static_cast<uint32_t>((part.cols + columns - 1) / columns)};
  const size_t units = size_t{image.tiles} * image.chunks;
  image.codes.resize(units * kUnitBytes);
  image.scales.resize(units * kTileRows * format.chunk_scale_bytes());
  if (format.super) image.factors.resize(image.tiles * (part.cols / 256) * kFactorBytes);
  const std::byte* panels = matrix.data() + part.first_row / kTileRows * layout.panel_bytes;
  pool.run(image.tiles, [&](size_t index, int) {
    Tile tile(image, layout, panels + index * layout.panel_bytes, part.first_col / kBlockCols,
              index);
    const size_t lanes = std::min<size_t>(kTileRows, image.rows - index * kTileRows);
    for (size_t lane = 0; lane < lanes; ++lane) {
      if (format.quantized()) {
        tile.fill_quantized_row(lane);
      } else {
        tile.fill_float_row(lane);
      }
    }
  });
  return image;
}

}  // namespace reprise::kernels::cuda

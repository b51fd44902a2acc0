#include "kernels/cuda/device_image.h"

#include <algorithm>
#include <cstring>

#include "kernels/matmul.h"
#include "kernels/packed_codes.h"

namespace reprise::kernels::cuda {
namespace {

static_assert(kTileRows == kPanelRows);

constexpr uint32_t kFactorBlocks = 8;  // blocks of 32 columns that share factors
constexpr size_t kStripWords = 256;    // of 16 rows, which the L1 cache holds

// One tile and the panel it is made from, whose columns it takes from first_block on.
class Tile {
 public:
  Tile(const DeviceImage& shape, const PackedLayout& layout, const std::byte* panel,
       size_t first_block, size_t rows, const std::array<std::byte*, 3>& planes)
      : shape_(shape),
        layout_(layout),
        format_(device_format(shape.type)),
        panel_(panel),
        first_block_(first_block),
        rows_(rows),
        codes_(planes[0]),
        scales_(planes[1]),
        factors_(planes[2]) {}

  void fill() {
    if (rows_ < kTileRows || shape_.cols % format_.chunk_columns() != 0) clear();
    const size_t first = first_block_ * kBlockCols;
    switch (shape_.type) {
      case TensorType::kF32:
        return fill_words<uint32_t>(first, shape_.cols);
      case TensorType::kF16:
        return fill_words<uint16_t>(first, shape_.cols);
      case TensorType::kBF16:
        fill_words<uint32_t>(first / 2, shape_.cols / 2);
        if (shape_.cols % 2 != 0) fill_last_bf16((first + shape_.cols) / 2);
        return;
      default:
        for_quantized(shape_.type, [&](auto type) { fill_quantized<type>(); });
    }
  }

 private:
  void clear() {
    const auto bytes = shape_.tile_bytes();
    std::memset(codes_, 0, bytes[0]);
    if (bytes[1] > 0) std::memset(scales_, 0, bytes[1]);
    if (bytes[2] > 0) std::memset(factors_, 0, bytes[2]);
  }

  std::byte* row(size_t lane) { return codes_ + lane * shape_.chunks * kChunkBytes; }

  // first: among the words of the panel's rows.
  template <class Word>
  void fill_words(size_t first, size_t words) {
    for (size_t begin = 0; begin < words; begin += kStripWords) {
      const size_t end = std::min(words, begin + kStripWords);
      for (size_t lane = 0; lane < rows_; ++lane) {
        std::byte* to = row(lane);
        for (size_t i = begin; i < end; ++i) {
          store(to, i, load<Word>(panel_, (first + i) * kPanelRows + lane));
        }
      }
    }
  }

  // The last of an odd number of columns has a word of the panel for itself or shares it.
  void fill_last_bf16(size_t word) {
    for (size_t lane = 0; lane < rows_; ++lane) {
      const auto value = load<uint16_t>(panel_, 2 * (word * kPanelRows + lane));
      store(row(lane), shape_.cols - 1, value);
    }
  }

  template <TensorType type>
  void fill_quantized() {
    constexpr QuantFormat kQuant = *quant_format(type);
    const std::byte* planes = panel_ + layout_.codes_offset + first_block_ * code_bytes(kQuant);
    for (size_t block = 0; block < blocks(); ++block) {
      for (size_t lane = 0; lane < rows_; ++lane) {
        uint32_t codes[8];
        unpack_codes(kQuant.bits, planes + block * code_bytes(kQuant), lane, codes);
        fill_codes<type>(codes, block, lane);
        if (!kQuant.super) fill_scales(kQuant, block, lane);
        if (kQuant.super && block % kFactorBlocks == 0) fill_super_scales(kQuant, block, lane);
      }
    }
  }

  size_t blocks() const { return (shape_.cols + kBlockCols - 1) / kBlockCols; }
  size_t chunk_blocks() const { return format_.chunk_columns() / kBlockCols; }
  size_t unit(size_t block) const { return block / chunk_blocks(); }

  template <TensorType type>
  void fill_codes(const uint32_t codes[8], size_t block, size_t lane) {
    constexpr QuantFormat kQuant = *quant_format(type);
    constexpr Codes kCodes = device_format(type).codes;
    // Codes of weight 0 agree among types: 8 of 4 bits, 128 of 8 bits.
    constexpr bool kShifts = !kQuant.has_min && !kQuant.lookup;
    constexpr int32_t kZero = kCodes == Codes::kInt8 ? 128 : 8;
    constexpr uint32_t kShift = kShifts ? static_cast<uint32_t>(kZero - kQuant.zero()) : 0;
    const size_t part = block % chunk_blocks();
    std::byte* pieces =
        codes_ + unit(block) * kUnitBytes + lane / 8 * (kUnitBytes / 2) + lane % 8 * kChunkBytes;
    for (size_t t = 0; t < 4; ++t) {
      const uint32_t low = codes[t] + kShift * kByteOnes, high = codes[4 + t] + kShift * kByteOnes;
      std::byte* piece = pieces + t * 16;
      if (kCodes == Codes::kInt8) {
        store(piece, part * 2, low);
        store(piece, part * 2 + 1, high);
      } else if (kCodes == Codes::kTable4) {
        store(piece, part, nibbles(low) | nibbles(high) << 16);
      } else {
        store(piece, part, low | high << 4);
      }
    }
  }

  // Four bytes below 16 as four nibbles.
  static uint32_t nibbles(uint32_t bytes) {
    const uint32_t pairs = (bytes | bytes >> 4) & 0x00ff00ffu;
    return (pairs | pairs >> 8) & 0xffffu;
  }

  std::byte* scale_at(size_t block, size_t half, size_t lane) {
    const size_t group = (block % chunk_blocks() * kBlockCols + half * 16) / format_.group;
    return scales_ + (unit(block) * kTileRows + lane) * format_.chunk_scale_bytes() +
           group * format_.scale_bytes();
  }

  void fill_scales(const QuantFormat& quant, size_t block, size_t lane) {
    const std::byte* from = panel_ + (first_block_ + block) * scale_bytes(quant);
    std::byte* at = scale_at(block, 0, lane);
    store(at, 0, load<F16>(from, lane));
    if (quant.has_min) store(at, 1, load<F16>(from, kPanelRows + lane));
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
    std::byte* factors = factors_ + first / kFactorBlocks * kFactorBytes + 4 * lane;
    store(factors, 0, load<F16>(from, lane));
    store(factors, 1, quant.has_min ? load<F16>(from, kPanelRows + lane) : F16{});
  }

  const DeviceImage& shape_;
  const PackedLayout& layout_;
  const DeviceFormat format_;
  const std::byte* panel_;
  const size_t first_block_, rows_;
  std::byte *codes_, *scales_, *factors_;
};

}  // namespace

MatrixPart whole(const PackedMatrix& matrix) { return {0, matrix.rows(), 0, matrix.cols()}; }

DeviceImage image_shape(const PackedMatrix& matrix, const MatrixPart& part) {
  const size_t columns = device_format(matrix.type()).chunk_columns();
  return {.type = matrix.type(),
          .rows = static_cast<uint32_t>(part.rows),
          .cols = static_cast<uint32_t>(part.cols),
          .tiles = static_cast<uint32_t>((part.rows + kTileRows - 1) / kTileRows),
          .chunks = static_cast<uint32_t>((part.cols + columns - 1) / columns)};
}

void fill_tiles(const PackedMatrix& matrix, const MatrixPart& part, const DeviceImage& shape,
                size_t first, size_t count, const std::array<std::byte*, 3>& planes,
                ThreadPool& pool) {
  const PackedLayout layout = packed_layout(matrix.type(), matrix.cols());
  const std::byte* panels = matrix.data() + part.first_row / kTileRows * layout.panel_bytes;
  const auto bytes = shape.tile_bytes();
  pool.run(count, [&](size_t index, int) {
    const size_t tile = first + index;
    std::array<std::byte*, 3> at = planes;
    for (size_t i = 0; i < at.size(); ++i) at[i] += index * bytes[i];
    Tile(shape, layout, panels + tile * layout.panel_bytes, part.first_col / kBlockCols,
         std::min<size_t>(kTileRows, shape.rows - tile * kTileRows), at)
        .fill();
  });
}

DeviceImage device_image(const PackedMatrix& matrix, ThreadPool& pool) {
  return device_image(matrix, whole(matrix), pool);
}

DeviceImage device_image(const PackedMatrix& matrix, const MatrixPart& part, ThreadPool& pool) {
  DeviceImage image = image_shape(matrix, part);
  const auto bytes = image.tile_bytes();
  image.codes.resize(image.tiles * bytes[0]);
  image.scales.resize(image.tiles * bytes[1]);
  image.factors.resize(image.tiles * bytes[2]);
  fill_tiles(matrix, part, image, 0, image.tiles,
             {image.codes.data(), image.scales.data(), image.factors.data()}, pool);
  return image;
}

}  // namespace reprise::kernels::cuda

#include "matmul_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/integer_tiles.h"
#include "kernels/quant_blocks.h"

namespace reprise::kernels {
namespace {

// Byte offsets of the f16 fields of a block.
std::vector<size_t> half_fields(TensorType type) {
  switch (type) {
    case TensorType::kQ4_1:
    case TensorType::kQ5_1:
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return {0, 2};
    case TensorType::kQ2_K:
      return {80, 82};
    case TensorType::kQ3_K:
      return {108};
    case TensorType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

void fill_floats(TensorType type, std::mt19937& random, std::vector<std::byte>& bytes) {
  std::normal_distribution<float> normal;
  const size_t size = tensor_type_info(type).block_bytes;
  for (size_t at = 0; at < bytes.size(); at += size) {
    const float value = normal(random);
    const uint16_t bits = type == TensorType::kF16 ? to_f16(value).bits : to_bf16(value).bits;
    if (size == 4) {
      std::memcpy(bytes.data() + at, &value, 4);
    } else {
      std::memcpy(bytes.data() + at, &bits, 2);
    }
  }
}

void fill_blocks(TensorType type, std::mt19937& random, std::vector<std::byte>& bytes) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 255);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  const size_t size = tensor_type_info(type).block_bytes;
  for (size_t block = 0; block < bytes.size(); block += size) {
    for (const size_t field : half_fields(type)) {
      const F16 value = to_f16(normal(random));
      std::memcpy(bytes.data() + block + field, &value, sizeof value);
    }
  }
}

// Largest |scale * code| + |min| of the weights around column: what the int8 products add up before
// they cancel.
double gross_weight(const StoredMatrix& m, size_t row, size_t column) {
  const auto format = quant_format(m.type);
  const TensorTypeInfo& info = tensor_type_info(m.type);
  const std::byte* block =
      m.bytes.data() + row * m.row_bytes + column / info.block * info.block_bytes;
  const GroupScale s =
      group_scale(*format, read_scales(m.type, block), column % info.block / format->group);
  const double largest_code = format->lookup ? 255 : (1 << format->bits) - 1;
  return std::fabs(s.scale) * largest_code + std::fabs(s.min);
}

struct RoundedBlock {
  double largest, half_step;  // of column i
};

// The 32 activations that share a scale with x[i].
RoundedBlock block_of(const float* x, size_t i, Phase phase, const QuantFormat& format) {
  double largest = 0, rest = 0;  // rest: but for the first of the largest
  size_t top = 0;
  for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
    const double magnitude = std::fabs(x[j]);
    rest = std::max(rest, std::min(magnitude, largest));
    if (magnitude > largest) {
      largest = magnitude;
      top = j;
    }
  }
  if (phase == Phase::kDecode) return {largest, largest / (127 * 254) / 2};
  if (!takes_int8(format)) return {largest, largest / kLargestInt16 / 2};
  return {largest, i == top ? 0 : std::max(rest, largest / kLargestTop) / kLargestInt8 / 2};
}

}  // namespace

StoredMatrix::StoredMatrix(TensorType stored_type, size_t row_count, size_t column_count,
                           uint32_t seed)
    : type(stored_type), rows(row_count), cols(column_count) {
  const TensorTypeInfo& info = tensor_type_info(type);
  row_bytes = cols / info.block * info.block_bytes;
  bytes.resize(rows * row_bytes);
  std::mt19937 random(seed);
  if (quant_format(type)) {
    fill_blocks(type, random, bytes);
  } else {
    fill_floats(type, random, bytes);
  }
}

TensorView StoredMatrix::view() const { return {"weight", type, {rows, cols}, bytes}; }

std::vector<float> StoredMatrix::row(size_t index) const {
  std::vector<float> values(cols);
  dequantize_row(type, bytes.data() + index * row_bytes, cols, values.data());
  return values;
}

size_t odd_columns(TensorType type) {
  const size_t block = tensor_type_info(type).block;
  return block == 1 ? 549 : block == 32 ? 544 : 768;
}

std::vector<float> random_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

PackedMatrix packed(const StoredMatrix& matrix, ThreadPool& pool) {
  const TensorView view = matrix.view();
  return std::move(*PackedMatrix::pack({&view, 1}, {}, pool));
}

Expected expected_product(const StoredMatrix& matrix, size_t row, const float* x, Phase phase) {
  constexpr double kFloatUnit = 0x1p-24, kBf16Unit = 0x1p-8;  // half an ulp of 1
  const bool in_bf16 = phase == Phase::kPrefill && cpu_isa() >= Isa::kAvx512;
  const bool in_codes = quant_format(matrix.type).has_value() && !in_bf16;
  const std::vector<float> w = matrix.row(row);
  double value = 0, magnitude = 0, gross = 0, rounded_x = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    value += static_cast<double>(w[i]) * x[i];
    magnitude += std::fabs(static_cast<double>(w[i]) * x[i]);
    if (!in_codes) continue;
    const auto [largest, half_step] = block_of(x, i, phase, *quant_format(matrix.type));
    rounded_x += std::fabs(w[i]) * (half_step + 2 * kFloatUnit * std::fabs(x[i]));
    gross += gross_weight(matrix, row, i) * (std::fabs(x[i]) + largest / 254);
  }
  // Every sum has at most one rounding per column, and a few per product.
  const double sums = (static_cast<double>(w.size()) + 8) * kFloatUnit;
  if (in_codes) return {value, rounded_x * (1 + 8 * kFloatUnit) + gross * sums};
  if (phase == Phase::kPrefill && matrix.type != TensorType::kF32) {
    return {value, magnitude * (2 * kBf16Unit + kBf16Unit * kBf16Unit + sums)};
  }
  return {value, magnitude * sums};
}

}  // namespace reprise::kernels

// Random weights of every type, and what their product must be.
#pragma once

#include <array>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "kernels/matmul.h"

namespace reprise::kernels {

inline constexpr std::array<TensorType, 14> kAllTypes = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,  TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K,  TensorType::kQ3_K,
    TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kIQ4_NL};

/// A weight as stored in a file, with random bits and scales of ordinary size.
struct StoredMatrix {
  StoredMatrix(TensorType type, size_t rows, size_t cols, uint32_t seed);

  TensorView view() const;
  std::vector<float> row(size_t index) const;

  TensorType type;
  size_t rows, cols, row_bytes;
  std::vector<std::byte> bytes;
};

/// A number of columns that the type allows, more than one pass of the prefill, not a multiple of
/// the sizes that kernels like.
size_t odd_columns(TensorType type);

std::vector<float> random_values(size_t count, uint32_t seed);

PackedMatrix packed(const StoredMatrix& matrix, ThreadPool& pool);

/// The exact product of one output and how far the phase's arithmetic may be from it.
struct Expected {
  double value, tolerance;
};
Expected expected_product(const StoredMatrix& matrix, size_t row, const float* x, Phase phase);

}  // namespace reprise::kernels

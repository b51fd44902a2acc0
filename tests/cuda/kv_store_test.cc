#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "cuda/device_testing.h"
#include "cuda/page_testing.h"
#include "kernels/cuda/heads.h"

namespace reprise::kernels::cuda {
namespace {

// Values of tokens [row][head][dim], each row of another magnitude.
std::vector<float> random_rows(uint32_t rows, uint32_t row_size, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(size_t{rows} * row_size);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<int>(i / row_size);
    values[i] = std::ldexp(normal(random), row % 24 - 16);
  }
  std::fill_n(values.begin() + row_size, row_size, 0.0f);
  return values;
}

// Largest error of storing x in a token of which largest is the largest magnitude.
double storing_error(KvType type, double x, double largest) {
  if (type == KvType::kBF16) return std::fabs(x) * 0x1p-8;
  if (type == KvType::kF16) return std::max(std::fabs(x) * 0x1p-11, 0x1p-25);
  // A code has 4 significant bits, or is a multiple of 2^-9. Quotient, scale and its product with
  // 448 are each rounded to 2^-24.
  const double scale = largest / double{kLargestE4M3};
  return std::max(std::fabs(x) * 0x1p-4, scale * 0x1p-10) + std::fabs(x) * 0x1p-22;
}

class KvStore : public testing::TestWithParam<std::tuple<KvType, uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(Types, KvStore,
                         testing::Combine(testing::Values(KvType::kBF16, KvType::kF16,
                                                          KvType::kFP8),
                                          testing::Values(64u, 96u, 128u, 256u)));

// Slots that are not read are times zero, which must not make NaN of what is.
TEST_P(KvStore, ValuesThatAreNoNumbersAreStoredAsSome) {
  REPRISE_NEEDS_DEVICE();
  const auto [type, dim] = GetParam();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> host(dim, 1.0f);
  for (const size_t quarter : {0u, 1u, 2u, 3u}) {
    host[quarter * dim / 4] = std::array{NAN, kInfinity, -kInfinity, 0x1.fffffep127f}[quarter];
  }
  const DeviceArray<float> k(std::vector<float>(dim, 1.0f)), v(host);
  const DeviceArray<int32_t> positions(std::vector<int32_t>{5});
  const DeviceArray<uint32_t> sequences(std::vector<uint32_t>{0}), pages(std::vector<uint32_t>{0});
  TestTiles tiles(type, dim, 2);
  const DeviceArray<uint8_t> kv(tiles.bytes());
  HeadsArgs args;
  args.k = k.get();
  args.v = v.get();
  args.rows = 1;
  args.positions = positions.get();
  args.kv = {kv.get(), type, 1, dim};
  args.pages = pages.get();
  args.sequences = sequences.get();
  args.capacity = 1;
  ASSERT_EQ(rotate_and_store(args, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  tiles.bytes() = kv.host();
  EXPECT_EQ(tiles.value(1, 5, 0), 0.0f);
  for (uint32_t d = 0; d < dim; ++d) {
    EXPECT_TRUE(std::isfinite(tiles.value(1, 5, d))) << "dimension " << d;
  }
}

// Rows of two sequences, which store their keys, not rotated, and their values.
TEST_P(KvStore, WhatIsStoredIsNear) {
  REPRISE_NEEDS_DEVICE();
  const auto [type, dim] = GetParam();
  constexpr uint32_t kRows = 45, kKvHeads = 3, kCapacity = 2;
  std::mt19937 random(dim);
  const std::vector<float> host[2] = {random_rows(kRows, kKvHeads * dim, random),
                                      random_rows(kRows, kKvHeads * dim, random)};
  const DeviceArray<float> k(host[0]), v(host[1]);
  std::vector<int32_t> at;
  std::vector<uint32_t> of;
  for (uint32_t row = 0; row < kRows; ++row) {
    at.push_back(static_cast<int32_t>(row / 2));
    of.push_back(row % 2);
  }
  const std::vector<uint32_t> ids = {3, 0, 1, 4};
  const DeviceArray<int32_t> positions(at);
  const DeviceArray<uint32_t> sequences(of), pages(ids);
  TestTiles tiles(type, dim, size_t{5} * kKvHeads * 2);
  const DeviceArray<uint8_t> kv(tiles.bytes());
  HeadsArgs args;
  args.k = k.get();
  args.v = v.get();
  args.rows = kRows;
  args.positions = positions.get();
  args.kv = {kv.get(), type, kKvHeads, dim};
  args.pages = pages.get();
  args.sequences = sequences.get();
  args.capacity = kCapacity;
  ASSERT_EQ(rotate_and_store(args, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  tiles.bytes() = kv.host();
  for (size_t i = 0; i < size_t{kRows} * kKvHeads * 2; ++i) {
    const auto row = static_cast<uint32_t>(i / 2 / kKvHeads), position = row / 2;
    const size_t tile =
        (ids[row % 2 * kCapacity + position / kPageTokens] * kKvHeads + i / 2 % kKvHeads) * 2 +
        i % 2;
    const float* want = &host[i % 2][i / 2 * dim];
    double largest = 0.0;
    for (uint32_t d = 0; d < dim; ++d) largest = std::max(largest, std::fabs(double{want[d]}));
    for (uint32_t d = 0; d < dim; ++d) {
      ASSERT_NEAR(tiles.value(tile, position % kPageTokens, d), want[d],
                  storing_error(type, want[d], largest))
          << "row " << row << " dimension " << d;
    }
    if (type == KvType::kFP8) {
      EXPECT_EQ(tiles.scale(tile, position % kPageTokens),
                static_cast<float>(largest) / kLargestE4M3);
    }
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda

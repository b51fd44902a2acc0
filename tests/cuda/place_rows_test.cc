#include "kernels/cuda/place_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kHeads = 6, kPages = 6, kStored = 100;

// How far a value may be off that is stored with others as large as largest.
double rounding(KvType type, double value, double largest) {
  switch (type) {
    case KvType::kBF16:
      return 0x1.01p-8 * std::fabs(value) + 0x1p-20;
    case KvType::kF16:
      return 0x1.01p-11 * std::fabs(value) + 0x1p-20;
    case KvType::kFP8:  // the scale puts the largest value at 448; codes below 2^-6 are even
      return 0x1.01p-4 * std::fabs(value) + 0x1p-9 * largest / kLargestE4M3;
    case KvType::kF32:
      break;
  }
  return 0.0;
}

/// Rows up to kCodes in bf16, those from there on as codes.
struct StoredValues {
  StoredValues(std::mt19937& random, uint32_t head_dim) : width(kHeads * head_dim) {
    std::normal_distribution<float> normal;
    const auto append = [&](auto value) {
      const auto* from = reinterpret_cast<const std::byte*>(&value);
      bytes.insert(bytes.end(), from, from + sizeof value);
    };
    for (size_t i = 0; i < kCodes * width; ++i) append(to_bf16(normal(random)));
    for (size_t i = 0; i < kCoded * width; ++i) append(static_cast<uint8_t>(random() % 255 - 127));
    for (size_t i = 0; i < kCoded * width / 32; ++i) append(to_f16(std::fabs(normal(random)) / 99));
  }

  StoredRow row(uint32_t row) const {
    if (row < kCodes) return {static_cast<uint32_t>(row * width * 2 / StoredRow::kUnit)};
    const size_t first = (row - kCodes) * width;
    return {static_cast<uint32_t>((codes() + first) / StoredRow::kUnit),
            static_cast<uint32_t>(scales() / 2 + first / 32)};
  }
  /// Of all rows' values.
  float value(size_t index) const {
    if (index < kCodes * width) return to_float(read<Bf16>(index * 2));
    index -= kCodes * width;
    const float scale = to_float(read<F16>(scales() + index / 32 * 2));
    return to_float(to_bf16(static_cast<float>(read<int8_t>(codes() + index)) * scale));
  }

  static constexpr size_t kCodes = 45, kCoded = kStored - kCodes;
  const size_t width;
  std::vector<std::byte> bytes;

 private:
  size_t codes() const { return kCodes * width * 2; }
  size_t scales() const { return codes() + kCoded * width; }
  template <class T>
  T read(size_t at) const {
    T value;
    std::memcpy(&value, &bytes[at], sizeof value);
    return value;
  }
};

void check(KvType type, uint32_t dim, uint32_t pairs) {
  std::mt19937 random(dim + pairs);
  std::normal_distribution<float> normal;
  const StoredValues stored(random, dim);
  const std::vector<uint32_t> table = {4, 0, 5, 2}, k_rows = {7, 0, 99, 41, 8},
                              v_rows = {50, 1, 2, 98, 0};
  std::vector<StoredRow> k_at, v_at;
  for (const uint32_t row : k_rows) k_at.push_back(stored.row(row));
  for (const uint32_t row : v_rows) v_at.push_back(stored.row(row));
  const std::vector<int32_t> positions = {63, 0, 17, 16, 40};
  const auto rows = static_cast<uint32_t>(positions.size());
  std::vector<float> cos_sin;
  for (uint32_t i = 0; i < rows * pairs * 2; ++i) cos_sin.push_back(normal(random));
  TestTiles tiles(type, dim, kPages * kHeads * 2);
  const DeviceArray<uint8_t> kv(tiles.bytes().size(), 0);
  const DeviceArray<std::byte> from(stored.bytes);
  const DeviceArray<uint32_t> pages(table);
  const DeviceArray<StoredRow> k(k_at), v(v_at);
  const DeviceArray<int32_t> places(positions);
  const DeviceArray<float> angles(cos_sin);
  PlaceRowsArgs args;
  args.stored = from.get();
  args.k_rows = k.get();
  args.v_rows = v.get();
  args.rows = rows;
  args.pairs = pairs;
  args.cos_sin = angles.get();
  args.positions = places.get();
  args.kv = {kv.get(), type, kHeads, dim};
  args.pages = pages.get();
  ASSERT_EQ(place_rows(args, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  tiles.bytes() = kv.host();
  for (uint32_t i = 0; i < rows * kHeads * 2; ++i) {
    const uint32_t row = i / (kHeads * 2), head = i / 2 % kHeads;
    const bool is_key = i % 2 == 0;
    const auto place = static_cast<uint32_t>(positions[row]);
    const size_t at = (size_t{is_key ? k_rows[row] : v_rows[row]} * kHeads + head) * dim;
    const size_t tile = (size_t{table[place / kPageTokens]} * kHeads + head) * 2 + i % 2;
    std::vector<double> want;
    for (uint32_t d = 0; d < dim; ++d) want.push_back(stored.value(at + d));
    for (uint32_t pair = 0; is_key && pair < pairs; ++pair) {
      const double x = want[2 * pair], y = want[2 * pair + 1];
      const double c = cos_sin[(row * pairs + pair) * 2], s = cos_sin[(row * pairs + pair) * 2 + 1];
      want[2 * pair] = x * c - y * s;
      want[2 * pair + 1] = x * s + y * c;
    }
    double largest = 0;
    for (const double value : want) largest = std::max(largest, std::fabs(value));
    for (uint32_t d = 0; d < dim; ++d) {
      ASSERT_NEAR(tiles.value(tile, place % kPageTokens, d), want[d],
                  rounding(type, want[d], largest))
          << "row " << row << ", tile " << tile << ", dimension " << d;
    }
  }
  // Nothing else was written: of page 0 two tokens were, of page 1 none.
  EXPECT_EQ(tiles.value(0, 2, 0), 0.0);
  EXPECT_EQ(tiles.value(size_t{1} * kHeads * 2, 0, 0), 0.0);
}

TEST(PlaceRows, KeysAreRotatedAndValuesAreNot) {
  REPRISE_NEEDS_DEVICE();
  for (const KvType type : {KvType::kBF16, KvType::kF16, KvType::kFP8}) {
    for (const uint32_t dim : {64u, 96u, 128u, 256u}) {
      for (const uint32_t pairs : {dim / 2, dim / 4}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(type)) + ", head_dim " + std::to_string(dim));
        check(type, dim, pairs);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(PlaceRows, WhatIsNotServedIsSaid) {
  PlaceRowsArgs args;
  args.rows = 1;
  args.kv = {nullptr, KvType::kFP8, 1, 72};
  EXPECT_EQ(place_rows(args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda

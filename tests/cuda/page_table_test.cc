#include "kernels/cuda/page_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_testing.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kLayers = 3, kTableRows = 20, kCapacity = 40;

// Tokens (page id, slot) that a list names, in order.
using Tokens = std::vector<std::pair<uint32_t, uint32_t>>;

Tokens tokens_of(const uint32_t* pages, const uint16_t* slots, int32_t keys) {
  Tokens tokens;
  for (int32_t key = 0; key < keys; ++key) {
    const auto nth = static_cast<uint32_t>(key);
    if ((slots[nth / kPageTokens] >> nth % kPageTokens & 1) == 0) continue;
    tokens.emplace_back(pages[nth / kPageTokens], nth % kPageTokens);
  }
  return tokens;
}

void expect_ranges(uint32_t sinks, uint32_t window) {
  SCOPED_TRACE("sinks " + std::to_string(sinks) + ", window " + std::to_string(window));
  std::vector<uint32_t> tables(size_t{kLayers} * kTableRows * kCapacity);
  std::iota(tables.begin(), tables.end(), 3u);
  std::shuffle(tables.begin(), tables.end(), std::mt19937(1));
  const std::vector<int32_t> positions = {0,  1,  3,  4,  15, 16, 17, 31, 32,
                                          47, 48, 49, 63, 64, 65, 99, 639};
  const std::vector<int32_t> windows = {static_cast<int32_t>(window), 0, 7};
  const auto count = static_cast<uint32_t>(positions.size()), rows = count + 2;
  const uint32_t capacity = range_list_capacity(sinks, std::max(window, 7u), kCapacity);
  const size_t lists = size_t{kLayers} * rows;
  const DeviceArray<uint32_t> device_tables(tables), pages(lists * capacity, 0xff);
  const DeviceArray<int32_t> device_positions(positions), device_windows(windows);
  const DeviceArray<uint16_t> slots(lists * capacity, 0xff);
  const DeviceArray<int32_t> keys(lists, 0xff);
  RangeLists args;
  args.tables = device_tables.get();
  args.positions = device_positions.get();
  args.layers = kLayers;
  args.table_rows = kTableRows;
  args.capacity = kCapacity;
  args.count = count;
  args.windows = device_windows.get();
  args.sinks = static_cast<int32_t>(sinks);
  args.pages = pages.get();
  args.slots = slots.get();
  args.keys = keys.get();
  args.list_rows = rows;
  args.list_capacity = capacity;
  ASSERT_EQ(range_lists(args, nullptr), cudaSuccess);
  const auto got_pages = pages.host();
  const auto got_slots = slots.host();
  const auto got_keys = keys.host();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t row = 0; row < rows; ++row) {
      const size_t list = size_t{layer} * rows + row;
      if (windows[layer] == 0 || row >= count) {
        ASSERT_EQ(got_keys[list], -1);
        continue;
      }
      Tokens expected;
      for (int32_t key = 0; key <= positions[row]; ++key) {
        if (key >= static_cast<int32_t>(sinks) && key <= positions[row] - windows[layer]) continue;
        const auto nth = static_cast<uint32_t>(key);
        const size_t table = size_t{layer} * kTableRows + row;
        expected.emplace_back(tables[table * kCapacity + nth / kPageTokens], nth % kPageTokens);
      }
      ASSERT_LE(got_keys[list], static_cast<int32_t>(capacity * kPageTokens));
      ASSERT_EQ(tokens_of(&got_pages[list * capacity], &got_slots[list * capacity], got_keys[list]),
                expected)
          << "layer " << layer << ", position " << positions[row];
    }
  }
}

TEST(RangeLists, NameFirstAndLastKeys) {
  REPRISE_NEEDS_DEVICE();
  for (const uint32_t sinks : {0u, 1u, 4u, 16u, 20u, 32u, 1000u}) {
    for (const uint32_t window : {1u, 15u, 16u, 17u, 64u, 10000u}) expect_ranges(sinks, window);
  }
}

TEST(MergePartials, IsTheMergeOfDoublePrecision) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kRows = 37, kDim = 96;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> out(kRows * kDim), more(kRows * kDim), lse(kRows), more_lse(kRows);
  for (auto* values : {&out, &more, &lse, &more_lse}) {
    for (float& value : *values) value = normal(random);
  }
  lse[3] = more_lse[4] = kNothing;
  lse[5] = more_lse[5] = kNothing;
  lse[6] = 200.0f;
  const DeviceArray<float> device_out(out), device_lse(lse), device_more(more),
      device_more_lse(more_lse);
  ASSERT_EQ(merge_partials(device_out.get(), device_lse.get(), device_more.get(),
                           device_more_lse.get(), kRows, kDim, nullptr),
            cudaSuccess);
  const auto got = device_out.host(), got_lse = device_lse.host();
  for (uint32_t row = 0; row < kRows; ++row) {
    if (row == 5) {
      EXPECT_EQ(got_lse[row], kNothing);
      continue;
    }
    const double top = std::max(lse[row], more_lse[row]);
    const double a = std::exp(lse[row] - top), b = std::exp(more_lse[row] - top);
    ASSERT_NEAR(got_lse[row], top + std::log(a + b), 0x1p-20 * (1 + std::abs(top)));
    for (uint32_t i = row * kDim; i < (row + 1) * kDim; ++i) {
      const double expected = (a * out[i] + b * more[i]) / (a + b);
      ASSERT_NEAR(got[i], expected, 0x1p-20 * (std::abs(out[i]) + std::abs(more[i])));
    }
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda

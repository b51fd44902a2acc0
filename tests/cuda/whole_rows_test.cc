// Rows that choose now and then, where others keep what they have: every page, or the best.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cuda/device_testing.h"
#include "kernels/cuda/page_bounds.h"

namespace reprise::kernels::cuda {
namespace {

TEST(TopPages, OfRowsThatHaveTheirTurn) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kRows = 4, kHeads = 2, kCapacity = 30, kBudget = 5;
  // Row 1 has no turn, row 2 one that budgets suffice for, rows 0 and 3 one, too.
  const std::vector<int32_t> positions = {16 * 20 + 5, 16 * 20 + 6, 16 * 3 + 5, 16 * 29 + 5};
  std::vector<uint32_t> table(kRows * kCapacity);
  std::iota(table.begin(), table.end(), 100u);
  std::vector<float> scores(kRows * kHeads * kCapacity);
  std::iota(scores.begin(), scores.end(), 0.0f);  // the last are the best
  const DeviceArray<int32_t> device_positions(positions), keys(kRows * kHeads);
  const DeviceArray<uint32_t> device_table(table), lists(kRows * kHeads * kCapacity, 0xff),
      numbers(kRows * kHeads * kCapacity, 0xff);
  const DeviceArray<float> device_scores(scores);
  TopPagesArgs args;
  args.rows = {device_positions.get(), device_table.get(), kRows, kCapacity, kBudget};
  args.n_kv_head = kHeads;
  args.sink_pages = 1;
  args.turns = {16, 10, 0};
  args.whole = true;
  args.scores = device_scores.get();
  args.lists = lists.get();
  args.numbers = numbers.get();
  args.keys = keys.get();
  args.list_capacity = kCapacity - 1;
  EXPECT_EQ(top_pages(args, nullptr), cudaErrorInvalidValue);
  args.list_capacity = kCapacity;
  ASSERT_EQ(top_pages(args, nullptr), cudaSuccess);
  const auto got = numbers.host(), pages = lists.host();
  for (uint32_t list = 0; list < kRows * kHeads; ++list) {
    const uint32_t row = list / kHeads, own = static_cast<uint32_t>(positions[row]) / 16;
    std::vector<uint32_t> want(own + 1);
    std::iota(want.begin(), want.end(), 0u);
    if (row == 1) want.clear();
    EXPECT_EQ(keys.host()[list], row == 1 ? 0 : positions[row] + 1);
    want.resize(kCapacity, ~0u);
    for (uint32_t i = 0; i < kCapacity; ++i) {
      ASSERT_EQ(got[list * kCapacity + i], want[i]) << list << " " << i;
      const uint32_t page = want[i] == ~0u ? ~0u : table[row * kCapacity + want[i]];
      ASSERT_EQ(pages[list * kCapacity + i], page);
    }
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda

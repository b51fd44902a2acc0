#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/page_shares_case.h"

namespace reprise::kernels::cuda {
namespace {

class WholeShares : public testing::TestWithParam<SharesCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, WholeShares, testing::ValuesIn(shares_cases()));

// Of base-2 logarithms below 32 those of the page and of all, and their difference, are rounded at
// 2^-20, and the hardware's are that far off; 13 sums are joined, each scaled at 3 2^-23.
double scored_error(const Attention::Share& want) { return 2 * want.error + want.value * 0x1p-17; }

TEST_P(WholeShares, AreThoseOfRowsThatHaveTheirTurn) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kPages = 40, kRows = 4, kCapacity = 43;
  constexpr float kFactor = 0.7f;
  const Attention attention(GetParam(), kPages, kRows);
  const uint32_t n_kv_head = GetParam().n_kv_head, n_head = GetParam().n_head;
  const uint32_t row_size = n_kv_head * kCapacity;
  // Row 1 has no turn, row 3 too few tokens.
  const std::vector<int32_t> positions = {16 * 37 + 5, 16 * 37 + 6, 16 * 12 + 5, 97};
  const std::vector<uint32_t> slots = {2, 4, 0, 1};
  std::vector<uint32_t> pages(size_t{kRows} * kCapacity);
  std::mt19937 random(3);
  for (uint32_t& page : pages) page = random() % kPages;
  std::vector<float> averages(5 * row_size), lse;
  for (float& x : averages) x = std::exponential_distribution<float>()(random) * 0.02f;
  for (uint32_t i = 0; i < kRows * n_head; ++i) {
    const auto first = pages.begin() + i / n_head * kCapacity;
    lse.push_back(attention.lse(i / n_head, i % n_head, {first, first + kCapacity},
                                static_cast<uint32_t>(positions[i / n_head]) + 1));
  }
  const DeviceArray<uint8_t> kv(attention.bytes());
  const DeviceArray<uint16_t> q(attention.q());
  const DeviceArray<uint32_t> device_pages(pages), device_slots(slots);
  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<float> device_averages(averages), shares(size_t{kRows} * row_size, 0xff),
      logs(size_t{2} * kRows * n_head * kCapacity, 0xff);
  WholeSharesArgs args;
  args.kv = {kv.get(), GetParam().type, n_kv_head, GetParam().head_dim};
  args.turns = {100, 2, 98};  // 598 and 198 tokens; 98 are too few
  args.positions = device_positions.get();
  args.pages = device_pages.get();
  args.rows = kRows;
  args.n_head = n_head;
  args.q = bf16(q);
  args.scale = kScale;
  args.largest = GetParam().largest;
  args.factor = kFactor;
  args.slots = device_slots.get();
  args.averages = device_averages.get();
  args.shares = shares.get();
  args.capacity = kCapacity;
  const DeviceArray<float2> sums(whole_shares_sums(kRows, n_head, n_kv_head));
  args.logs = logs.get();
  args.sums = sums.get();
  ASSERT_EQ(whole_shares(args, nullptr, nullptr), cudaSuccess);
  const auto got = shares.host(), after = device_averages.host();
  for (uint32_t i = 0; i < got.size(); ++i) {
    const uint32_t row = i / row_size, page = i % kCapacity;
    const uint32_t slot = slots[row] * row_size + i % row_size;
    const int32_t left = positions[row] + 1 - static_cast<int32_t>(page * 16);
    if (row % 2 == 1 || left <= 0) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
      ASSERT_EQ(after[slot], averages[slot]) << i;
      continue;
    }
    const auto want = attention.share(row, i % row_size / kCapacity, pages[row * kCapacity + page],
                                      static_cast<uint32_t>(std::min(left, 16)), lse);
    const double error = scored_error(want);
    ASSERT_NEAR(got[i], want.value, error) << i;
    ASSERT_NEAR(after[slot], kFactor * averages[slot] + (1 - kFactor) * want.value,
                error + 0x1p-22 * averages[slot])
        << i;
  }
}

// A prompt's rows share a table; a history in two pieces is that of its rows, one after another.
TEST_P(WholeShares, OfAPromptAreAveragedRowByRow) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kPages = 9, kRows = 7, kFirst = 4, kCapacity = 12;
  constexpr float kFactor = 0.7f;
  const Attention attention(GetParam(), kPages, kRows);
  const uint32_t n_kv_head = GetParam().n_kv_head, n_head = GetParam().n_head;
  std::vector<uint32_t> table(kPages);
  std::iota(table.rbegin(), table.rend(), 0u);
  std::vector<int32_t> positions(kRows);
  std::iota(positions.begin(), positions.end(), 123);
  std::vector<float> lse;
  for (uint32_t i = 0; i < kRows * n_head; ++i) {
    const auto keys = static_cast<uint32_t>(positions[i / n_head]) + 1;
    lse.push_back(attention.lse(i / n_head, i % n_head, table, keys));
  }
  const DeviceArray<uint8_t> kv(attention.bytes());
  const DeviceArray<uint16_t> q(attention.q());
  const DeviceArray<uint32_t> device_table(table);
  const DeviceArray<int32_t> device_positions(positions);
  constexpr uint32_t kHistory = 8;
  const DeviceArray<float> averages(size_t{n_kv_head} * kCapacity, 0xff),
      history(size_t{n_kv_head} * kHistory * kCapacity, 0xff),
      shares(size_t{kRows} * n_kv_head * kCapacity, 0xff),
      logs(size_t{2} * kRows * n_head * kCapacity, 0xff);
  WholeSharesArgs args;
  args.kv = {kv.get(), GetParam().type, n_kv_head, GetParam().head_dim};
  args.turns.period = 1;
  args.pages = device_table.get();
  args.one_table = true;
  args.n_head = n_head;
  args.scale = kScale;
  args.largest = GetParam().largest;
  args.shares = shares.get();
  args.capacity = kCapacity;
  const DeviceArray<float2> sums(whole_shares_sums(kRows, n_head, n_kv_head));
  args.logs = logs.get();
  args.sums = sums.get();
  for (const bool first : {true, false}) {
    const uint32_t from = first ? 0 : kFirst;
    args.rows = first ? kFirst : kRows - kFirst;
    args.positions = device_positions.get() + from;
    args.q = bf16(q) + size_t{from} * n_head * GetParam().head_dim;
    ASSERT_EQ(whole_shares(args, nullptr, nullptr), cudaSuccess);
    ASSERT_EQ(average_rows({shares.get(),
                            args.positions,
                            args.rows,
                            n_kv_head,
                            kCapacity,
                            first,
                            kFactor,
                            averages.get(),
                            {history.get(), kHistory, false}},
                           nullptr),
              cudaSuccess);
  }
  const auto got = averages.host(), kept = history.host();
  for (uint32_t i = 0; i < got.size(); ++i) {
    const uint32_t page = i % kCapacity;
    double want = 0, error = 0;
    for (uint32_t row = 0; row < kRows; ++row) {
      const int32_t end = positions[row] + 1 - static_cast<int32_t>(page * 16);
      Attention::Share share;
      if (end > 0 && page < kPages) {
        share = attention.share(row, i / kCapacity, table[page],
                                static_cast<uint32_t>(std::min(end, 16)), lse);
      }
      const uint32_t at =
          i / kCapacity * kHistory + static_cast<uint32_t>(positions[row]) % kHistory;
      ASSERT_NEAR(kept[at * kCapacity + page], share.value, scored_error(share)) << row;
      const double weight = row == 0 ? 1.0 : 1.0 - kFactor;
      want = kFactor * (row == 0 ? 0.0 : want) + weight * share.value;
      error = kFactor * error + scored_error(share) + want * 0x1p-22;
    }
    ASSERT_NEAR(got[i], want, error) << "page " << page;
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda

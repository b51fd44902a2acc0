#include "kernels/cuda/page_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "cuda/page_shares_case.h"
#include "kernels/cuda/kept_keys.h"

namespace reprise::kernels::cuda {
namespace {

class PageShares : public testing::TestWithParam<SharesCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, PageShares, testing::ValuesIn(shares_cases()));

// A history in two pieces is that of its rows, one after another.
TEST_P(PageShares, AveragesOfAPromptAreThoseOfItsRows) {
  REPRISE_NEEDS_DEVICE();
  if (GetParam().largest) return;  // votes are sums
  constexpr uint32_t kPages = 9, kRows = 7, kFirst = 4, kCapacity = 12, kStride = kCapacity * 16;
  constexpr int32_t kPosition = 123;  // of row 0
  constexpr float kFactor = 0.7f;
  const Attention attention(GetParam(), kPages, kRows);
  const uint32_t n_kv_head = GetParam().n_kv_head, n_head = GetParam().n_head;
  std::vector<uint32_t> table(kPages);
  std::iota(table.rbegin(), table.rend(), 0u);
  std::vector<float> lse;
  for (uint32_t i = 0; i < kRows * n_head; ++i) {
    lse.push_back(attention.lse(i / n_head, i % n_head, table, kPosition + 1 + i / n_head));
  }
  const DeviceArray<uint8_t> kv(attention.bytes());
  const DeviceArray<uint16_t> q(attention.q());
  const DeviceArray<uint32_t> device_table(table);
  const DeviceArray<float> device_lse(lse), weighed(lse.size()), votes(size_t{n_head} * kStride),
      averages(size_t{n_kv_head} * kCapacity, 0xff);
  for (const bool first : {true, false}) {
    const uint32_t from = first ? 0 : kFirst, rows = first ? kFirst : kRows - kFirst;
    ASSERT_EQ(
        weigh_rows({device_lse.get() + from * n_head, rows, n_head, first, kFactor, weighed.get()},
                   nullptr),
        cudaSuccess);
    KeyVotesArgs vote;
    vote.kv = {kv.get(), GetParam().type, n_kv_head, GetParam().head_dim};
    vote.keys.pages = device_table.get();
    vote.keys.end = kPosition + static_cast<int32_t>(from + rows);
    vote.n_head = n_head;
    vote.q = bf16(q) + size_t{from} * n_head * GetParam().head_dim;
    vote.lse = weighed.get();
    vote.rows = rows;
    vote.first = kPosition + static_cast<int32_t>(from);
    vote.scale = kScale;
    vote.votes = votes.get();
    vote.stride = kStride;
    ASSERT_EQ(key_votes(vote, nullptr), cudaSuccess);
    PoolSharesArgs pool;
    pool.votes = votes.get();
    pool.n_head = n_head;
    pool.n_kv_head = n_kv_head;
    pool.keys = static_cast<uint32_t>(vote.keys.end);
    pool.stride = kStride;
    pool.past = first ? 0.0f : std::pow(kFactor, static_cast<float>(rows));
    pool.averages = averages.get();
    pool.capacity = kCapacity;
    ASSERT_EQ(pool_shares(pool, nullptr), cudaSuccess);
  }
  const auto got = averages.host();
  for (size_t i = 0; i < got.size(); ++i) {
    double want = 0, error = 0;
    for (uint32_t row = 0; row < kRows; ++row) {
      const int32_t end = kPosition + 1 + static_cast<int32_t>(row - i % kCapacity * 16);
      Attention::Share share;
      if (end > 0 && i % kCapacity < kPages) {
        share = attention.share(row, static_cast<uint32_t>(i / kCapacity), table[i % kCapacity],
                                static_cast<uint32_t>(std::min(end, 16)), lse);
      }
      const double weight = row == 0 ? 1.0 : 1.0 - kFactor;
      want = kFactor * (row == 0 ? 0.0 : want) + weight * share.value;
      error = kFactor * error + share.error + share.value * 0x1p-19;  // of weights: powf and logf
    }
    ASSERT_NEAR(got[i], want, error) << "page " << i % kCapacity;
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda

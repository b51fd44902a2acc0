#include "kernels/cuda/page_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"
#include "kernels/cuda/kept_keys.h"

namespace reprise::kernels::cuda {
namespace {

constexpr float kScale = 0.11f;

struct Case {
  KvType type;
  uint32_t n_head, n_kv_head, head_dim;
};

// What a test reads: pages in some order, queries, and the probabilities that follow from them.
class Attention {
 public:
  Attention(const Case& shape, uint32_t pages, uint32_t rows)
      : shape_(shape),
        tiles_(shape.type, shape.head_dim, size_t{pages} * shape.n_kv_head * 2),
        q_(size_t{rows} * shape.n_head * shape.head_dim) {
    std::mt19937 random(5);
    tiles_.fill(random);
    for (uint16_t& value : q_) value = to_bf16(std::normal_distribution<float>()(random)).bits;
  }

  struct Logit {
    double value, error;
  };
  // Products are exact, of two numbers of 11 bits at most; each of head_dim additions may be cut
  // off at 2^-23 of the magnitude, and so may scaling; soft caps are not used.
  Logit logit(size_t row, uint32_t head, uint32_t page, uint32_t token) const {
    const uint32_t kv_head = head / (shape_.n_head / shape_.n_kv_head), dim = shape_.head_dim;
    const size_t tile = (size_t{page} * shape_.n_kv_head + kv_head) * 2;
    double sum = 0, magnitude = 0;
    for (uint32_t d = 0; d < dim; ++d) {
      const double term =
          to_float(Bf16{q_[(row * shape_.n_head + head) * dim + d]}) * tiles_.value(tile, token, d);
      sum += term;
      magnitude += std::abs(term);
    }
    return {kScale * sum, kScale * magnitude * (dim + 4) * 0x1p-23};
  }

  // Over keys [0, keys) of pages.
  float lse(size_t row, uint32_t head, const std::vector<uint32_t>& pages, uint32_t keys) const {
    double total = 0;
    for (uint32_t key = 0; key < keys; ++key) {
      total += std::exp(logit(row, head, pages[key / 16], key % 16).value);
    }
    return static_cast<float>(std::log(total));
  }

  struct Share {
    double value = 0, error = 0;
  };
  // Mean over the query heads of a KV head of what keys [begin, end) of a page get.
  Share share(size_t row, uint32_t kv_head, uint32_t page, uint32_t end,
              const std::vector<float>& lse) const {
    const uint32_t group = shape_.n_head / shape_.n_kv_head;
    Share share;
    for (uint32_t i = 0; i < group * end; ++i) {
      const uint32_t head = kv_head * group + i / end;
      const Logit own = logit(row, head, page, i % end);
      const float total = lse[row * shape_.n_head + head];
      const double p = std::exp(own.value - total) / group;
      // Differences of logits and denominators, rounded; the hardware's exponential, 2^-22.
      const double rounding = (std::abs(own.value) + std::abs(total)) * 0x1p-22 + 0x1p-21;
      share.value += p;
      share.error += p * (own.error + rounding);
    }
    return {share.value, share.error + share.value * 16 * group * 0x1p-23};
  }

  const Case& shape() const { return shape_; }
  const std::vector<uint8_t>& bytes() const { return tiles_.bytes(); }
  const std::vector<uint16_t>& q() const { return q_; }

 private:
  Case shape_;
  TestTiles tiles_;
  std::vector<uint16_t> q_;
};

const __nv_bfloat16* bf16(const DeviceArray<uint16_t>& array) {
  return reinterpret_cast<const __nv_bfloat16*>(array.get());
}

class PageShares : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, PageShares,
    testing::Values(Case{KvType::kBF16, 8, 2, 128}, Case{KvType::kF16, 3, 1, 64},
                    Case{KvType::kFP8, 16, 1, 96}, Case{KvType::kFP8, 4, 2, 64},
                    Case{KvType::kBF16, 22, 2, 256}, Case{KvType::kF16, 5, 5, 96}));

TEST_P(PageShares, AreWhatPagesOfAListGot) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kPages = 60, kRows = 3, kCapacity = 14;
  const Attention attention(GetParam(), kPages, kRows);
  const uint32_t n_kv_head = GetParam().n_kv_head, n_head = GetParam().n_head;
  std::vector<uint32_t> lists(size_t{kRows} * n_kv_head * kCapacity);
  std::mt19937 random(2);
  for (uint32_t& page : lists) page = random() % kPages;
  std::vector<int32_t> keys;
  std::vector<float> lse;
  for (const int32_t row_keys : {16 * 13 + 5, 16, 0}) {
    for (uint32_t i = 0; i < n_kv_head; ++i) keys.push_back(row_keys);
    for (uint32_t head = 0; head < n_head; ++head) {
      const size_t list = lse.size() / n_head * n_kv_head + head / (n_head / n_kv_head);
      const auto first = lists.begin() + static_cast<ptrdiff_t>(list * kCapacity);
      lse.push_back(attention.lse(lse.size() / n_head, head, {first, first + kCapacity},
                                  static_cast<uint32_t>(row_keys)));
    }
  }
  const DeviceArray<uint8_t> kv(attention.bytes());
  const DeviceArray<uint16_t> q(attention.q());
  const DeviceArray<uint32_t> device_lists(lists);
  const DeviceArray<int32_t> device_keys(keys);
  const DeviceArray<float> device_lse(lse), shares(lists.size(), 0xff);
  ReadSharesArgs args;
  args.kv = {kv.get(), GetParam().type, n_kv_head, GetParam().head_dim};
  args.lists = {device_lists.get(), nullptr, device_keys.get(), n_kv_head, kCapacity};
  args.rows = kRows;
  args.n_head = n_head;
  args.q = bf16(q);
  args.lse = device_lse.get();
  args.scale = kScale;
  args.shares = shares.get();
  ASSERT_EQ(read_shares(args, nullptr), cudaSuccess);
  const auto got = shares.host();
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t list = i / kCapacity;
    const int32_t left = keys[list] - static_cast<int32_t>(i % kCapacity * 16);
    if (left <= 0) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
      continue;
    }
    const auto want = attention.share(list / n_kv_head, static_cast<uint32_t>(list % n_kv_head),
                                      lists[i], static_cast<uint32_t>(std::min(left, 16)), lse);
    ASSERT_NEAR(got[i], want.value, want.error) << i;
  }
}

// A history in two pieces is that of its rows, one after another.
TEST_P(PageShares, AveragesOfAPromptAreThoseOfItsRows) {
  REPRISE_NEEDS_DEVICE();
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

TEST_P(PageShares, OfAllKeysAreThoseOfRowsThatHaveTheirTurn) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kPages = 40, kRows = 4, kCapacity = 43;
  constexpr float kFactor = 0.7f;
  const Attention attention(GetParam(), kPages, kRows);
  const uint32_t n_kv_head = GetParam().n_kv_head, n_head = GetParam().n_head;
  const uint32_t group = n_head / n_kv_head, row_size = n_kv_head * kCapacity;
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
  const DeviceArray<uint32_t> device_pages(pages), device_slots(slots), score_rows(kRows),
      arrived(size_t{kRows} * n_kv_head);
  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<float> device_averages(averages), shares(size_t{kRows} * row_size, 0xff),
      logs(size_t{kRows} * n_head * kCapacity, 0xff);
  WholeSharesArgs args;
  args.kv = {kv.get(), GetParam().type, n_kv_head, GetParam().head_dim};
  args.turns = {100, 2, 98};  // 598 and 198 tokens; 98 are too few
  args.positions = device_positions.get();
  args.pages = device_pages.get();
  args.rows = kRows;
  args.n_head = n_head;
  args.q = bf16(q);
  args.scale = kScale;
  args.factor = kFactor;
  args.slots = device_slots.get();
  args.averages = device_averages.get();
  args.shares = shares.get();
  args.capacity = kCapacity;
  args.score_rows = score_rows.get();
  args.shares_row = 70;
  args.averages_row = 30;
  args.logs = logs.get();
  args.arrived = arrived.get();
  ASSERT_EQ(whole_shares(args, nullptr), cudaSuccess);
  EXPECT_EQ(score_rows.host(), (std::vector<uint32_t>{70, 34, 72, 31}));
  EXPECT_EQ(arrived.host(), std::vector<uint32_t>(kRows * n_kv_head));
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
    // Page logarithms and totals are rounded, and computed by the hardware to 2^-21 of themselves.
    const double error = 2 * want.error + want.value * group * 0x1p-18;
    ASSERT_NEAR(got[i], want.value, error) << i;
    ASSERT_NEAR(after[slot], kFactor * averages[slot] + (1 - kFactor) * want.value,
                error + 0x1p-22 * averages[slot])
        << i;
  }
}

class AverageShares : public testing::TestWithParam<float> {};  // fade
INSTANTIATE_TEST_SUITE_P(Fades, AverageShares, testing::Values(1.0f, 0.956f));

TEST_P(AverageShares, FollowWhatWasRead) {
  REPRISE_NEEDS_DEVICE();
  const float fade = GetParam();
  constexpr uint32_t kRows = 3, kHeads = 2, kSlots = 4, kCapacity = 3000, kRead = 1100;
  std::mt19937 random(4);
  std::exponential_distribution<float> values;
  std::vector<float> averages(kSlots * kHeads * kCapacity), shares(kRows * kHeads * kRead);
  for (float& x : averages) x = values(random) * 2e-4f;
  for (float& x : shares) x = values(random) * 1e-3f;
  std::vector<uint32_t> numbers(shares.size(), ~0u);
  const std::vector<uint32_t> slots = {2, 0, 3};
  std::vector<int32_t> keys;
  for (uint32_t list = 0; list < kRows * kHeads; ++list) {
    const uint32_t read = list / kHeads == 1 ? 0 : kRead - list * 37;  // row 1 reads nothing
    std::vector<uint32_t> pages(kCapacity - list);
    std::iota(pages.begin(), pages.end(), 0u);
    std::shuffle(pages.begin(), pages.end(), random);
    pages.resize(read);
    std::sort(pages.begin(), pages.end());
    std::copy(pages.begin(), pages.end(), numbers.begin() + list * kRead);
    keys.push_back(static_cast<int32_t>(read * 16 - (read > 0 ? 7 : 0)));
  }
  const DeviceArray<float> device_averages(averages), device_shares(shares);
  const DeviceArray<uint32_t> device_numbers(numbers), device_slots(slots);
  const DeviceArray<int32_t> device_keys(keys);
  const DeviceArray<int32_t> device_positions(std::vector<int32_t>{40000, 40000, 39998});
  const ShareTurns turns = {1000, 1, 39000};  // row 2's
  const float factor = 0.7f;
  ASSERT_EQ(average_shares({device_numbers.get(), device_keys.get(), device_shares.get(), kRows,
                            kHeads, kRead, factor, device_slots.get(), device_averages.get(),
                            kCapacity, fade, turns, device_positions.get()},
                           nullptr),
            cudaSuccess);
  std::vector<float> want = averages;
  for (uint32_t list = 0; list < kRows * kHeads; ++list) {
    const auto read = static_cast<uint32_t>(keys[list] + 15) / 16;
    if (read == 0 || list / kHeads == 2) continue;
    const uint32_t* own = &numbers[list * kRead];
    float* average = &want[(slots[list / kHeads] * kHeads + list % kHeads) * kCapacity];
    double elsewhere = std::accumulate(average, average + own[read - 1] + 1, 0.0);
    for (uint32_t i = 0; i < read; ++i) elsewhere -= average[own[i]];
    const double share = (1.0 - factor) * std::clamp(1.0 - fade * elsewhere, 0.0, 1.0);
    const std::vector<float> before(average, average + own[read - 1] + 1);
    for (size_t page = 0; page < before.size(); ++page) average[page] *= fade;
    for (uint32_t i = 0; i < read; ++i) {
      average[own[i]] =
          static_cast<float>(factor * before[own[i]] + share * shares[list * kRead + i]);
    }
  }
  const auto got = device_averages.host();
  for (size_t i = 0; i < got.size(); ++i) {
    // Sixteen roundings of sums below 2, times 0.3 of a share below 0.02; what was not read stays.
    const bool stays = want[i] == averages[i];
    const double error = stays ? 0.0 : 16 * 2 * 0x1p-24 * 0.3 * 0.02 + 0x1p-23 * want[i];
    ASSERT_NEAR(got[i], want[i], error) << i;
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda

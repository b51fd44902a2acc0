#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "cuda/device_testing.h"
#include "kernels/cuda/page_shares.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kRows = 3, kHeads = 2, kGroup = 3, kSlots = 4, kCapacity = 3000, kRead = 1100;
constexpr uint32_t kHistory = 3;
constexpr float kFactor = 0.7f;
// Sixteen roundings; and logarithms below 32 are rounded twice by 2^-20, which multiplies shares.
constexpr double kShareError = 16 * 0x1p-23 + 2 * 0x1p-20;

/// The pages that every list reads, of kRead at most, and how many keys those are.
struct Lists {
  std::vector<uint32_t> numbers;
  std::vector<int32_t> keys;
};

Lists random_lists(std::mt19937& random) {
  Lists lists = {std::vector<uint32_t>(size_t{kRows} * kHeads * kRead, ~0u), {}};
  for (uint32_t list = 0; list < kRows * kHeads; ++list) {
    const uint32_t read = list / kHeads == 1 ? 0 : kRead - list * 37;  // row 1 reads nothing
    std::vector<uint32_t> pages(kCapacity - list);
    std::iota(pages.begin(), pages.end(), 0u);
    std::shuffle(pages.begin(), pages.end(), random);
    pages.resize(read);
    std::sort(pages.begin(), pages.end());
    std::copy(pages.begin(), pages.end(), lists.numbers.begin() + list * kRead);
    lists.keys.push_back(static_cast<int32_t>(read * 16 - (read > 0 ? 7 : 0)));
  }
  return lists;
}

/// What attention tells of pages, and their shares that follow.
struct Told {
  std::vector<float> logs, lse;
  std::vector<float> shares;

  explicit Told(std::mt19937& random) {
    std::exponential_distribution<float> values;
    std::uniform_real_distribution<float> totals(-20.0f, 20.0f);
    shares.resize(kRows * kHeads * kRead);
    for (uint32_t head = 0; head < kRows * kHeads * kGroup; ++head) {
      lse.push_back(totals(random));
      for (uint32_t i = 0; i < kRead; ++i) {
        const float share = values(random) * 1e-3f;
        logs.push_back((std::log(share) + lse.back()) / std::log(2.0f));
        const double exact = std::exp2(logs.back() - lse.back() / std::log(2.0));
        shares[head / kGroup * kRead + i] += static_cast<float>(exact / kGroup);
      }
    }
  }
};

/// Checks what was kept of a row that read pages with these shares, and moves the averages of its
/// list on.
void follow(std::span<const uint32_t> pages, const float* shares, float fade, bool roots,
            const float* kept, float* average) {
  double elsewhere = std::accumulate(average, average + pages.back() + 1, 0.0);
  for (const uint32_t page : pages) elsewhere -= average[page];
  const double share = (1.0 - kFactor) * std::clamp(1.0 - fade * elsewhere, 0.0, 1.0);
  const std::vector<float> before(average, average + pages.back() + 1);
  std::vector<float> seen(kCapacity);
  for (size_t page = 0; page < before.size() && roots; ++page) {
    seen[page] = std::sqrt(fade * before[page]);
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    const double share_read = share / (1.0 - kFactor) * shares[i];
    seen[pages[i]] = roots ? static_cast<float>(std::sqrt(share_read)) : shares[i];
  }
  for (uint32_t page = 0; page < kCapacity; ++page) {
    // As below, of shares; roots halve errors in proportion.
    ASSERT_NEAR(kept[page], seen[page], kShareError * seen[page]) << page;
  }
  for (size_t page = 0; page < before.size(); ++page) average[page] *= fade;
  for (size_t i = 0; i < pages.size(); ++i) {
    average[pages[i]] = static_cast<float>(kFactor * before[pages[i]] + share * shares[i]);
  }
}

struct Keeping {
  float fade;
  bool roots;
};

class AverageShares : public testing::TestWithParam<Keeping> {};
INSTANTIATE_TEST_SUITE_P(Fades, AverageShares,
                         testing::Values(Keeping{1.0f, true}, Keeping{0.956f, true},
                                         Keeping{0.956f, false}));

TEST_P(AverageShares, FollowWhatWasRead) {
  REPRISE_NEEDS_DEVICE();
  const auto [fade, roots] = GetParam();
  std::mt19937 random(4);
  std::exponential_distribution<float> values;
  std::vector<float> averages(kSlots * kHeads * kCapacity);
  for (float& x : averages) x = values(random) * 2e-4f;
  const Told told(random);
  const std::vector<uint32_t> slots = {2, 0, 3};
  const auto [numbers, keys] = random_lists(random);
  const DeviceArray<float> device_averages(averages), logs(told.logs), lse(told.lse);
  const DeviceArray<float> shares(told.shares.size(), 0xff);
  const DeviceArray<uint32_t> device_numbers(numbers), device_slots(slots);
  const DeviceArray<int32_t> device_keys(keys);
  const DeviceArray<int32_t> device_positions(std::vector<int32_t>{40000, 40000, 39998});
  const RowTurns turns = {1000, 1, 39000};  // row 2's
  // Positions 40000 are in row 1 of the history.
  const DeviceArray<float> history(size_t{kSlots} * kHeads * kHistory * kCapacity, 0xff);
  ASSERT_EQ(average_shares({device_numbers.get(),
                            device_keys.get(),
                            logs.get(),
                            lse.get(),
                            shares.get(),
                            kRows,
                            kHeads * kGroup,
                            kHeads,
                            kRead,
                            kFactor,
                            device_slots.get(),
                            device_averages.get(),
                            kCapacity,
                            fade,
                            turns,
                            device_positions.get(),
                            {history.get(), kHistory, roots}},
                           nullptr),
            cudaSuccess);
  std::vector<float> want = averages;
  const auto kept = history.host();
  for (uint32_t list = 0; list < kRows * kHeads; ++list) {
    const auto read = static_cast<uint32_t>(keys[list] + 15) / 16;
    if (read == 0 || list / kHeads == 2) continue;
    const size_t own = slots[list / kHeads] * kHeads + list % kHeads;
    follow(std::span(numbers).subspan(list * kRead, read), &told.shares[list * kRead], fade, roots,
           &kept[(own * kHistory + 1) * kCapacity], &want[own * kCapacity]);
    if (HasFatalFailure()) return;
  }
  const auto got = device_averages.host();
  for (size_t i = 0; i < got.size(); ++i) {
    // Roundings of sums below 2, times 0.3 of a share below 0.02; what was not read stays.
    const bool stays = want[i] == averages[i];
    const double error = stays ? 0.0 : kShareError * 0.3 * 0.02 + 0x1p-23 * want[i];
    ASSERT_NEAR(got[i], want[i], error) << i;
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda

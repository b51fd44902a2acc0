#include "kernels/cuda/row_agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cuda/device_testing.h"
#include "methods/cuda/reattention_watch.h"
#include "methods/reattention/agreement.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kHeads = 24, kBatch = 3;
constexpr float kEnough = 3.5f;

/// Sequences on the device beside the host's form; the last one is not there.
struct Agreements {
  explicit Agreements(int32_t first)
      : states(std::vector<RowAgreement>(kBatch)),
        pointers(std::vector<RowAgreement*>{states.get(), states.get() + 1, nullptr}),
        rows{first, first + 7, first} {}

  /// A layer of a row of each sequence: keys that heads found, of which some are alike.
  void layer(std::mt19937& random) {
    std::vector<uint32_t> leaders(kBatch * kHeads);
    for (uint32_t s = 0; s < kBatch; ++s) {
      for (uint32_t different = random() % 9; different > 0; --different) {
        const uint32_t key = 40 + random() % 600;
        for (uint32_t heads = 1 + random() % 3; heads > 0; --heads) {
          leaders[s * kHeads + random() % kHeads] = key + 1;
        }
      }
    }
    const DeviceArray<uint32_t> device_leaders(leaders);
    const DeviceArray<int32_t> positions(rows);
    AgreementArgs args;
    args.states = pointers.get();
    args.positions = positions.get();
    args.batch = kBatch;
    args.middle = {16, 64, 100};
    args.leaders = device_leaders.get();
    args.n_head = kHeads;
    args.rules = agreement_rules(kEnough);
    ASSERT_EQ(find_agreement(args, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto all = states.host();
    for (uint32_t s = 0; s + 1 < kBatch; ++s) {
      const KeyRange32 middle = middle_of(args.middle, rows[s], 1);
      std::vector<int32_t> want = host[s].regions(rows[s], kEnough);
      std::erase_if(want, [&](int32_t page) {
        const int32_t key = Agreement::middle_of(page);
        return key < middle.begin || key >= middle.end;
      });
      ASSERT_EQ(std::vector<int32_t>(all[s].pages, all[s].pages + all[s].regions), want);
      for (uint32_t head = 0; head < kHeads; ++head) {
        const uint32_t key = leaders[s * kHeads + head];
        if (key > 0) host[s].add(rows[s], static_cast<int32_t>(key) - 1);
      }
      found += want.size();
      none += want.empty() ? 1 : 0;
    }
  }
  void next_row() {
    for (int32_t& row : rows) ++row;
  }

  DeviceArray<RowAgreement> states;
  DeviceArray<RowAgreement*> pointers;
  std::vector<int32_t> rows;
  Agreement host[kBatch];
  size_t found = 0, none = 0;
};

TEST(RowAgreement, RegionsAreThoseOfTheHost) {
  REPRISE_NEEDS_DEVICE();
  std::mt19937 random(7);
  Agreements own(700);
  for (int step = 0; step < 60 && !testing::Test::HasFatalFailure(); ++step) {
    for (int layer = 0; layer < 3; ++layer) own.layer(random);
    own.next_row();
  }
  std::printf("  %zu regions, none at %zu layers of rows\n", own.found, own.none);
  EXPECT_GT(own.found, 50u);
}

TEST(RowAgreement, FarRowsNeedFewerVotesAsOnTheHost) {
  REPRISE_NEEDS_DEVICE();
  const auto found = [](int32_t row) {  // after so few rows that regions are rare
    std::mt19937 random(10);
    Agreements own(row);
    for (int step = 0; step < 4 && !testing::Test::HasFatalFailure(); ++step) {
      own.layer(random);
      own.next_row();
    }
    return own.found;
  };
  const size_t near = found(700);
  EXPECT_GT(found(3'000'000), near);
  EXPECT_GT(found(9'000'000), near);
}

TEST(RowAgreement, ForgetsAndOverflowsLikeTheHost) {
  REPRISE_NEEDS_DEVICE();
  std::mt19937 random(8);
  Agreements own(700);
  for (int step = 0; step < 400 && !testing::Test::HasFatalFailure(); ++step) {
    for (int layer = 0; layer < 3; ++layer) own.layer(random);
    own.next_row();
    if (step % 50 != 49) continue;
    for (uint32_t s = 0; s + 1 < kBatch; ++s) {  // the last ten rows come again
      own.rows[s] -= 10;
      ASSERT_EQ(forget_agreement(own.states.get() + s, own.rows[s], nullptr), cudaSuccess);
      own.host[s].truncate(own.rows[s]);
    }
  }
  EXPECT_GT(own.states.host()[0].begin, 0u) << "too few votes to overflow";
}

TEST(RowAgreement, RowsWithoutAMiddleReadNothingElse) {
  REPRISE_NEEDS_DEVICE();
  std::mt19937 random(9);
  Agreements own(60);  // up to 100 tokens everything is read
  for (int layer = 0; layer < 9 && !testing::Test::HasFatalFailure(); ++layer) own.layer(random);
  EXPECT_EQ(own.states.host()[0].regions, 0u);
  EXPECT_EQ(own.states.host()[0].end, 0u);
}

}  // namespace
}  // namespace reprise::kernels::cuda

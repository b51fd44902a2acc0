#include "engine/cuda/rank_threads.h"

#include <gtest/gtest.h>

#include <barrier>

namespace reprise {
namespace {

// None of this needs a device.
TEST(RankThreads, RanksRunAtTheSameTime) {
  for (const uint32_t ranks : {1, 2, 5}) {
    RankThreads threads(ranks);
    std::barrier meeting(ranks);  // hangs unless every rank has a thread
    for (int round = 0; round < 200; ++round) {
      std::vector<int> calls(ranks);
      const Status status = threads.run([&](uint32_t rank) -> Status {
        meeting.arrive_and_wait();
        ++calls[rank];
        return {};
      });
      EXPECT_TRUE(status);
      EXPECT_EQ(calls, std::vector<int>(ranks, 1));
    }
  }
}

TEST(RankThreads, TheFirstErrorIsToldOnce) {
  RankThreads threads(4);
  std::barrier meeting(4);
  for (const uint32_t failing : {0, 2, 3}) {
    const Status status = threads.run([&](uint32_t rank) -> Status {
      meeting.arrive_and_wait();
      if (rank == failing) return fail(ErrorCode::kOutOfMemory, "rank {}", rank);
      return {};
    });
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "rank " + std::to_string(failing));
    EXPECT_TRUE(threads.run([](uint32_t) { return Status(); })) << "errors do not stay";
  }
}

}  // namespace
}  // namespace reprise

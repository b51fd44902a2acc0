#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "base/sanitizers.h"

namespace reprise {
namespace {

// From one thread to more than most test machines have cores.
class ThreadPoolTest : public testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 4, 8),
                         testing::PrintToStringParamName());

TEST_P(ThreadPoolTest, HasItsSize) { EXPECT_EQ(pool_.size(), GetParam()); }

TEST_P(ThreadPoolTest, EveryTaskRunsOnceAndItsResultIsSeen) {
  for (const size_t tasks : {0, 1, 2, 3, 7, 8, 9, 100, 10000}) {
    std::vector<int> runs(
        tasks);  // plain ints: the pool itself must order the writes and the reads
    std::vector<int> thread_of(tasks, -1);
    pool_.run(tasks, [&](size_t task, int thread) {
      ++runs[task];
      thread_of[task] = thread;
    });
    EXPECT_EQ(runs, std::vector<int>(tasks, 1)) << tasks;
    for (const int thread : thread_of) {
      ASSERT_GE(thread, 0);
      ASSERT_LT(thread, pool_.size());
    }
  }
}

TEST_P(ThreadPoolTest, MoreTasksThanARegionCounts) {
  std::vector<uint8_t> runs((size_t{1} << 22) + 1000);
  pool_.run(runs.size(), [&](size_t task, int) { ++runs[task]; });
  EXPECT_EQ(std::count(runs.begin(), runs.end(), 1), static_cast<std::ptrdiff_t>(runs.size()));
}

TEST_P(ThreadPoolTest, AThreadIsInOneTaskAtATime) {
  const auto threads = static_cast<size_t>(pool_.size());
  std::vector<size_t> sums(threads);  // one plain counter for each thread: no other may touch it
  constexpr size_t kTasks = 5000;
  pool_.run(kTasks, [&](size_t task, int thread) { sums[static_cast<size_t>(thread)] += task; });
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), size_t{0}), kTasks * (kTasks - 1) / 2);
}

TEST_P(ThreadPoolTest, ManyTinyRegionsFollowEachOther) {
  constexpr size_t kTasks = 16;
  std::vector<uint64_t> values(kTasks, 1), next(kTasks);
  constexpr int kRegions = 300;
  for (int region = 0; region < kRegions; ++region) {
    // Each region reads what another task of the one before wrote.
    pool_.run(kTasks, [&](size_t task, int) { next[task] = values[(task + 1) % kTasks] + 1; });
    values.swap(next);
  }
  EXPECT_EQ(values, std::vector<uint64_t>(kTasks, 1 + kRegions));
}

// Workers help the caller, who must wait for what they took of its share.
TEST_P(ThreadPoolTest, TasksThatOthersTookAreWaitedFor) {
  using std::chrono::milliseconds;
  const size_t own = 3, tasks = own * static_cast<size_t>(pool_.size());
  for (int round = 0; round < 3; ++round) {
    std::vector<int> done(tasks);
    pool_.run(tasks, [&](size_t task, int thread) {
      const bool taken = task < own && thread != 0;
      std::this_thread::sleep_for(milliseconds(taken ? 10 : thread == 0 ? 2 : 0));
      done[task] = 1;
    });
    EXPECT_EQ(done, std::vector<int>(tasks, 1));
  }
}

TEST_P(ThreadPoolTest, SleepingWorkersWakeUp) {
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than workers spin
    std::vector<int> runs(64);
    pool_.run(runs.size(), [&](size_t task, int) { ++runs[task]; });
    EXPECT_EQ(runs, std::vector<int>(64, 1));
  }
}

TEST_P(ThreadPoolTest, ABodyOfAnyKindIsCalledInPlace) {
  struct Counter {
    std::vector<int> runs = std::vector<int>(10);
    void operator()(size_t task, int) { ++runs[task]; }
  } counter;
  pool_.run(10, counter);
  EXPECT_EQ(counter.runs, std::vector<int>(10, 1)) << "not a copy of it";
  const auto constant = [&counter](size_t task, int) { ++counter.runs[task]; };
  pool_.run(10, constant);
  EXPECT_EQ(counter.runs, std::vector<int>(10, 2));
}

TEST(ThreadPool, PoolsAreMadeAndEndedAtAnyMoment) {
  for (int round = 0; round < 50; ++round) {
    auto pool = std::make_unique<ThreadPool>(4);
    if (round % 2 == 0) pool->run(8, [](size_t, int) {});
  }
}

TEST(ThreadPool, ZeroTakesTheUsableCores) { EXPECT_GE(ThreadPool(0).size(), 1); }

TEST(ThreadPool, WorksWithTheThreadsThatTheSystemStarts) {
  if (kSanitized) GTEST_SKIP() << "needs more room than is left here";
  const auto work = [] {
    const rlimit room = {uint64_t{1} << 30, uint64_t{1} << 30};  // 8 MiB a stack
    if (setrlimit(RLIMIT_AS, &room) != 0) std::exit(1);
    ThreadPool pool(1024);
    std::vector<std::atomic<int>> ones(5000);
    pool.run(ones.size(), [&](size_t task, int thread) { ones[task] += thread < pool.size(); });
    const auto once = [](const auto& one) { return one == 1; };
    const bool all = std::all_of(ones.begin(), ones.end(), once);
    std::fprintf(stderr, "%d threads", pool.size());
    std::exit(all && pool.size() < 1024 ? 0 : 1);
  };
  EXPECT_EXIT(work(), testing::ExitedWithCode(0), "threads");
}

TEST(ThreadPool, TwoPoolsWorkSideBySide) {
  std::vector<int> results(2);
  const auto work = [&results](size_t which) {
    ThreadPool pool(3);
    for (int region = 0; region < 100; ++region) {
      std::vector<int> ones(20);
      pool.run(ones.size(), [&](size_t task, int) { ones[task] = 1; });
      results[which] += std::accumulate(ones.begin(), ones.end(), 0);
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  EXPECT_EQ(results, std::vector<int>(2, 2000));
}

}  // namespace
}  // namespace reprise

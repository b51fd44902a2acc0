#include "kernels/cuda/top_keys.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "cuda/top_keys_case.h"

namespace reprise::kernels::cuda {
namespace {

using Shape = ScanShape;
using Case = ScanCase;

TEST(TopKeys, AreThoseOfAllScoresInEveryShape) {
  REPRISE_NEEDS_DEVICE();
  for (const KvType type : {KvType::kBF16, KvType::kF16, KvType::kFP8}) {
    for (const uint32_t dim : {64u, 96u, 128u, 256u}) {
      for (const auto& [n_head, n_kv_head] : {std::pair{9u, 3u}, {4u, 4u}, {16u, 1u}}) {
        SCOPED_TRACE("type " + std::to_string(static_cast<int>(type)) + ", head_dim " +
                     std::to_string(dim) + ", heads " + std::to_string(n_head));
        const Shape shape = {type, dim, n_head, n_kv_head};
        Case decode(shape, {900, 41, 33, 500}, 1);
        decode.fill(Whole(dim), Whole(dim + 1));
        decode.check({5, 20, 40}, 11);
        Case prompt(shape, {700}, 45);
        prompt.fill(Whole(dim), Whole(dim + 1));
        prompt.check({16, 64, 100}, 4, 3);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(TopKeys, OfEveryNumberOfKeysRowsAndPicks) {
  REPRISE_NEEDS_DEVICE();
  for (const int32_t length : {1, 21, 22, 23, 31, 32, 33, 37, 49, 300, 5000}) {
    for (const uint32_t k : {1u, 4u, 33u, kMaxTopKeys}) {
      SCOPED_TRACE(std::to_string(length) + " keys, the best " + std::to_string(k));
      Case decode({}, {length}, 1);
      decode.fill(Whole(1), Whole(2));
      decode.check({1, 20, 0}, k);
      if (length < 300) continue;
      Case prompt({}, {length}, 200);
      prompt.fill(Whole(1), Whole(2));
      prompt.check({1, 200, 0}, k);
      prompt.check({1, 230, 0}, k, 64);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Blocks of many queries, full and with places left over, of several sequences and stages.
TEST(TopKeys, OfManyQueries) {
  REPRISE_NEEDS_DEVICE();
  for (const KvType type : {KvType::kBF16, KvType::kF16}) {
    for (const uint32_t dim : {64u, 128u}) {
      for (const uint32_t rows : {64u, 86u, 160u, 171u}) {
        for (const uint32_t k : {4u, 16u}) {
          SCOPED_TRACE("type " + std::to_string(static_cast<int>(type)) + ", head_dim " +
                       std::to_string(dim) + ", rows " + std::to_string(rows) + ", the best " +
                       std::to_string(k));
          Case prompt({type, dim, 6, 2}, {1500, 777}, rows);
          prompt.fill(Whole(dim), Whole(rows));
          prompt.check({17, 20, 100}, k);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(TopKeys, VotesAreOfVotingHeadsWhoseBestKeyLeads) {
  REPRISE_NEEDS_DEVICE();
  const std::vector<uint8_t> some = {0, 1, 0, 0, 0, 1, 1, 0, 0};
  const Casting cases[] = {{2, 0.0f, {}},        {16, 30.0f, {}},       {2, 40.0f, {}},
                           {2, 0.0f, some},      {3, 35.0f, some},      {1, 1e6f, {}},
                           {16, 0.0f, {}, 0.1f}, {5, 30.0f, some, 0.3f}};
  for (const Casting& casting : cases) {
    Case decode({}, {900, 41, 33, 500}, 1);
    decode.fill(Whole(5), Whole(6));
    decode.check({5, 20, 40}, 16, 1, casting);
    Case prompt({}, {700}, 45);
    prompt.fill(Whole(7), Whole(8));
    prompt.check({16, 64, 100}, 16, 3, casting);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(TopKeys, OfEqualScoresTheLatestKeysWin) {
  REPRISE_NEEDS_DEVICE();
  for (const float value : {0.0f, 1.0f, -1.0f}) {
    for (const uint32_t rows : {1u, 64u}) {
      Case all({}, {3000}, rows);
      all.fill([&](size_t, uint32_t) { return value; }, [](size_t, uint32_t) { return 1.0f; });
      all.check({3, 100, 0}, 20);
    }
  }
  // Zeros of both signs are equal.
  Case zeros({}, {800}, 1);
  zeros.fill([](size_t key, uint32_t dim) { return dim == 0 && key % 3 == 0 ? -0.0f : 0.0f; },
             [](size_t, uint32_t dim) { return dim == 0 ? 1.0f : 0.0f; });
  zeros.check({3, 100, 0}, 20);
}

// The only product of a score is that of dimension 0, so that any value is exact.
void check_scores(const std::function<float(size_t key)>& score, int32_t length = 2000) {
  for (const uint32_t rows : {1u, 33u, 80u}) {
    for (const uint32_t dim : {64u, 128u}) {
      Case one({KvType::kBF16, dim, 6, 2}, {length}, rows);
      one.fill([&](size_t key, uint32_t d) { return d == 0 ? score(key / 2) : 0.0f; },
               [](size_t, uint32_t d) { return d == 0 ? 1.0f : 0.0f; });
      one.check({2, 60, 0}, 7);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(TopKeys, AdversarialScores) {
  REPRISE_NEEDS_DEVICE();
  const auto small = [](size_t key) {
    return std::ldexp(static_cast<float>(key * 37 % 101), -133);  // denormal in bf16
  };
  check_scores(small);
  check_scores([&](size_t key) { return -small(key); });
  check_scores([](size_t key) { return key % 400 == 7 ? 1.0f : -INFINITY; });
  check_scores([](size_t key) { return key % 400 == 7 ? INFINITY : 1.0f; });
  check_scores([](size_t) { return -INFINITY; });
  check_scores([](size_t key) { return key % 5 == 0 ? NAN : -1.0f; });
  check_scores([](size_t key) { return -0x1.fep127f * static_cast<float>(key % 2); });
  // Better from key to key, in either direction: every key or none enters a list.
  check_scores([](size_t key) { return std::ldexp(1.0f, static_cast<int>(key / 20) - 50); });
  check_scores([](size_t key) { return std::ldexp(1.0f, 50 - static_cast<int>(key / 20)); });
  // All winners in one page.
  check_scores(
      [](size_t key) { return key / 16 == 70 ? 2.0f + static_cast<float>(key % 16) : 1.0f; });
}

TEST(TopKeys, QueriesAreTurned) {
  REPRISE_NEEDS_DEVICE();
  const Shape shape = {KvType::kBF16, 64, 2, 1};
  std::vector<float> turned(128);
  std::vector<float> plain(128);
  Whole values(9);
  for (float& x : plain) x = values(0, 0);
  const std::vector<float> by = {0.0f, 1.0f, -1.0f, 0.0f};  // the first two pairs
  turned = plain;
  for (size_t head = 0; head < 2; ++head) {
    float* q = &turned[head * 64];
    const float* p = &plain[head * 64];
    q[0] = -p[1];
    q[1] = p[0];
    q[2] = -p[2];
    q[3] = -p[3];
  }
  std::vector<RankedWord> lists[2];
  for (const bool on_device : {false, true}) {
    TestTiles tiles(KvType::kBF16, 64, 64 * 2);
    std::mt19937 random(4);
    tiles.fill(random);
    const DeviceArray<uint8_t> kv(tiles.bytes());
    std::vector<uint32_t> order(64);
    std::iota(order.begin(), order.end(), 0u);
    const DeviceArray<uint32_t> pages(order);
    const DeviceArray<int32_t> last(std::vector<int32_t>{1000});
    const DeviceArray<float> q(on_device ? plain : turned), angles(by);
    const DeviceArray<RankedWord> found(2 * 5);
    const DeviceArray<uint32_t> floors(2);
    const DeviceArray<uint8_t> workspace(top_keys_workspace(1, 1, 2, 1, 5));
    TopKeysArgs args;
    args.kv = {kv.get(), shape.type, shape.n_kv_head, shape.dim};
    args.pages = pages.get();
    args.positions = last.get();
    args.batch = 1;
    args.capacity = 64;
    args.middle = {4, 50, 0};
    args.n_head = 2;
    args.q = q.get();
    if (on_device) {
      args.angles = angles.get();
      args.pairs = 2;
    }
    args.k = 5;
    args.floors = floors.get();
    args.found = found.get();
    args.workspace = workspace.get();
    ASSERT_EQ(top_keys(args, nullptr), cudaSuccess);
    lists[on_device] = found.host();
    std::sort(lists[on_device].begin(), lists[on_device].begin() + 5);
    std::sort(lists[on_device].begin() + 5, lists[on_device].end());
  }
  EXPECT_EQ(lists[0], lists[1]);
}

// Calls that need different amounts of shared memory of one kernel do not disturb each other.
TEST(TopKeys, ThreadsCallAtOnce) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kPicks[] = {1, kMaxTopKeys};
  std::atomic<int> refused = 0, ready = 0;
  std::vector<std::jthread> threads;
  for (const uint32_t k : kPicks) {
    threads.emplace_back([&, k] {
      const Case nothing({}, {60}, 1);
      const Case::Call call(nothing, {30, 30, 0}, k, 1);
      cudaStream_t stream = nullptr;
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      ++ready;
      while (ready < 2) std::this_thread::yield();
      for (int i = 0; i < 20000; ++i) refused += top_keys(call.args, stream) != cudaSuccess;
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      cudaStreamDestroy(stream);
    });
  }
  threads.clear();
  EXPECT_EQ(refused, 0);
}

TEST(TopKeys, WhatIsNotServedIsSaid) {
  TopKeysArgs args;
  args.batch = 1;
  args.n_head = args.kv.n_kv_head = 1;
  args.kv.head_dim = 80;
  EXPECT_EQ(top_keys(args, nullptr), cudaErrorNotSupported);
  args.kv.head_dim = 64;
  args.k = kMaxTopKeys + 1;
  EXPECT_EQ(top_keys(args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda

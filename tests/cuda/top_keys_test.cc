#include "kernels/cuda/top_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"

namespace reprise::kernels::cuda {
namespace {

struct Shape {
  KvType type = KvType::kBF16;
  uint32_t dim = 64, n_head = 9, n_kv_head = 3;
};

// Which of what was found gets votes.
struct Casting {
  uint32_t each = kMaxTopKeys;
  float lead = 0.0f;
  std::vector<uint8_t> voting;  // [n_head], or empty

  bool counts(const std::vector<std::pair<float, int32_t>>& found, uint32_t k, uint32_t head,
              size_t at) const {
    const bool leads = found.size() < k || found[0].first - found[k - 1].first >= lead;
    return at < each && leads && (voting.empty() || voting[head] != 0);
  }
};

// Sequences whose pages lie in disorder, and the queries of their last rows.
class Case {
 public:
  Case(const Shape& shape, std::vector<int32_t> lengths, uint32_t rows)
      : shape_(shape),
        lengths_(std::move(lengths)),
        rows_(rows),
        capacity_(*std::max_element(lengths_.begin(), lengths_.end()) / 16 + 2),
        tiles_(shape.type, shape.dim, lengths_.size() * capacity_ * shape.n_kv_head * 2),
        keys_(lengths_.size() * capacity_ * 16 * shape.n_kv_head * shape.dim),
        q_(lengths_.size() * rows * shape.n_head * shape.dim) {
    std::mt19937 random(shape.dim + rows);
    pages_.resize(lengths_.size() * capacity_);
    std::iota(pages_.begin(), pages_.end(), 0u);
    std::shuffle(pages_.begin(), pages_.end(), random);
    codes_ = e4m3_values();
    for (const int32_t length : lengths_) last_.push_back(length - 1);
  }

  // Values that all types have.
  void fill(const std::function<float(size_t key, uint32_t dim)>& key,
            const std::function<float(size_t row, uint32_t dim)>& query) {
    const size_t width = size_t{shape_.n_kv_head} * shape_.dim;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto dim = static_cast<uint32_t>(i % shape_.dim);
      keys_[i] = key(i / shape_.dim, dim);
      const size_t token = i / width, head = i % width / shape_.dim;
      set((pages_[token / 16] * shape_.n_kv_head + head) * 2, token % 16, dim, keys_[i]);
    }
    for (size_t i = 0; i < q_.size(); ++i) {
      q_[i] = query(i / shape_.dim, static_cast<uint32_t>(i % shape_.dim));
    }
  }

  // Arguments, and what they point to.
  struct Call {
    Call(const Case& of, MiddleKeys middle, uint32_t k, uint32_t stride)
        : kv(of.tiles_.bytes()), pages(of.pages_), last(of.last_), q(of.q_) {
      const Shape& shape = of.shape_;
      const auto batch = static_cast<uint32_t>(of.lengths_.size());
      args.kv = {kv.get(), shape.type, shape.n_kv_head, shape.dim};
      args.pages = pages.get();
      args.positions = last.get();
      args.batch = batch;
      args.capacity = static_cast<uint32_t>(of.capacity_);
      args.rows = of.rows_;
      args.stride = stride;
      args.middle = middle;
      args.n_head = shape.n_head;
      args.q = q.get();
      args.k = k;
      const uint32_t voters = args.voters(), votes = voters * shape.n_head * k;
      const uint32_t slots = vote_slots(votes);
      found.emplace(size_t{batch} * votes);
      floors.emplace(size_t{batch} * voters * shape.n_head);
      workspace.emplace(top_keys_workspace(batch, voters, shape.n_head, shape.n_kv_head, k), 0x5a);
      for (auto& table : tables) table.emplace(size_t{batch} * slots);
      args.floors = floors->get();
      args.found = found->get();
      args.workspace = workspace->get();
      args.votes = {
          slots,           tables[0]->get(), tables[1]->get(), tables[2]->get(), tables[3]->get(),
          tables[4]->get()};
    }

    DeviceArray<uint8_t> kv;
    DeviceArray<uint32_t> pages;
    DeviceArray<int32_t> last;
    DeviceArray<float> q;
    std::optional<DeviceArray<RankedWord>> found;
    std::optional<DeviceArray<uint8_t>> workspace;
    std::optional<DeviceArray<uint32_t>> floors, tables[5];  // keys, votes, best, used, count
    TopKeysArgs args;
  };

  void check(MiddleKeys middle, uint32_t k, uint32_t stride = 1, const Casting& casting = {}) {
    Call call(*this, middle, k, stride);
    TopKeysArgs& args = call.args;
    const DeviceArray<uint8_t> voting(casting.voting);
    args.votes_each = casting.each;
    args.lead = casting.lead;
    if (!casting.voting.empty()) args.voting = voting.get();
    const uint32_t batch = args.batch, voters = args.voters(), slots = args.votes.slots;
    ASSERT_EQ(top_keys(args, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (const uint32_t floor : call.floors->host()) ASSERT_EQ(floor, 0);
    const auto words = call.found->host();
    const auto voted = call.tables[0]->host(), votes_of = call.tables[1]->host(),
               counts = call.tables[4]->host();
    for (uint32_t s = 0; s < batch; ++s) {
      std::map<int32_t, uint32_t> want_votes, got_votes;
      for (uint32_t i = 0; i < voters * shape_.n_head; ++i) {
        const uint32_t row = rows_ - 1 - i / shape_.n_head * stride, head = i % shape_.n_head;
        const auto want = best_keys(s, row, head, middle, k);
        std::vector<std::pair<float, int32_t>> got;
        for (uint32_t j = 0; j < k; ++j) {
          const RankedWord word = words[(size_t{s} * voters * shape_.n_head + i) * k + j];
          if (word == 0) continue;
          const uint32_t bits = score_bits(word);
          float score = 0;
          std::memcpy(&score, &bits, sizeof score);
          got.emplace_back(score, key_of(word));
        }
        std::sort(got.rbegin(), got.rend());
        ASSERT_EQ(got, want) << "sequence " << s << ", row " << row << ", head " << head;
        for (size_t j = 0; j < want.size(); ++j) {
          if (casting.counts(want, k, head, j)) ++want_votes[want[j].second];
        }
      }
      for (uint32_t i = 0; i < slots; ++i) {
        const size_t at = size_t{s} * slots + i;
        if (voted[at] != 0) got_votes[static_cast<int32_t>(voted[at]) - 1] = votes_of[at];
      }
      ASSERT_EQ(got_votes, want_votes) << "sequence " << s;
      ASSERT_EQ(counts[s], want_votes.size());
    }
  }

 private:
  void set(size_t tile, size_t token, uint32_t dim, float value) {
    const auto slot = static_cast<uint32_t>(token);
    uint8_t* start = &tiles_.bytes()[tile * tile_bytes(shape_.type, shape_.dim)];
    uint8_t* to = start + element_offset(shape_.type, shape_.dim, slot, dim);
    if (shape_.type == KvType::kFP8) {
      *to = static_cast<uint8_t>(std::find(codes_.begin(), codes_.end(), value) - codes_.begin());
      const float one = 1.0f;
      std::memcpy(start + fp8_scale_offset(shape_.dim, slot), &one, sizeof one);
      return;
    }
    const uint16_t bits = shape_.type == KvType::kBF16 ? to_bf16(value).bits : to_f16(value).bits;
    std::memcpy(to, &bits, sizeof bits);
  }

  // Largest first; products of values that are exact, in any order.
  std::vector<std::pair<float, int32_t>> best_keys(uint32_t s, uint32_t row, uint32_t head,
                                                   MiddleKeys middle, uint32_t k) const {
    const KeyRange32 keys = middle_of(middle, lengths_[s] - 1, rows_);
    const float* q = &q_[((size_t{s} * rows_ + row) * shape_.n_head + head) * shape_.dim];
    const uint32_t kv_head = head / (shape_.n_head / shape_.n_kv_head);
    std::vector<std::pair<float, int32_t>> scores;
    for (int32_t key = keys.begin; key < keys.end; ++key) {
      const size_t token = s * capacity_ * 16 + static_cast<size_t>(key);
      const float* from = &keys_[(token * shape_.n_kv_head + kv_head) * shape_.dim];
      float score = 0;
      for (uint32_t d = 0; d < shape_.dim; ++d) score += q[d] * from[d];
      if (score > -INFINITY) scores.emplace_back(score + 0.0f, key);
    }
    std::sort(scores.rbegin(), scores.rend());
    scores.resize(std::min<size_t>(scores.size(), k));
    return scores;
  }

  Shape shape_;
  std::vector<int32_t> lengths_, last_;
  uint32_t rows_;
  size_t capacity_;
  TestTiles tiles_;
  std::vector<float> keys_;  // [tokens of all capacities, n_kv_head, dim]
  std::vector<float> q_;     // [batch, rows, n_head, dim]
  std::vector<uint32_t> pages_;
  std::array<double, 256> codes_;
};

// Small whole numbers: sums are exact, and many scores are equal.
class Whole {
 public:
  explicit Whole(uint32_t seed, int reach = 3) : random_(seed), values_(-reach, reach) {}
  float operator()(size_t, uint32_t) { return static_cast<float>(values_(random_)); }

 private:
  std::mt19937 random_;
  std::uniform_int_distribution<int> values_;
};

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

TEST(TopKeys, VotesAreOfVotingHeadsWhoseBestKeyLeads) {
  REPRISE_NEEDS_DEVICE();
  const std::vector<uint8_t> some = {0, 1, 0, 0, 0, 1, 1, 0, 0};
  const Casting cases[] = {{2, 0.0f, {}},   {16, 30.0f, {}},  {2, 40.0f, {}},
                           {2, 0.0f, some}, {3, 35.0f, some}, {1, 1e6f, {}}};
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
  for (const uint32_t rows : {1u, 33u}) {
    Case one({KvType::kBF16, 64, 6, 2}, {length}, rows);
    one.fill([&](size_t key, uint32_t dim) { return dim == 0 ? score(key / 2) : 0.0f; },
             [](size_t, uint32_t dim) { return dim == 0 ? 1.0f : 0.0f; });
    one.check({2, 60, 0}, 7);
    if (testing::Test::HasFatalFailure()) return;
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

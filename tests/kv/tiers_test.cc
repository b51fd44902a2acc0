#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <map>
#include <memory>

#include "kv/hidden_file.h"
#include "kv/kv_testing.h"
#include "kv/paged_testing.h"
#include "kv/prefix_cache.h"
#include "kv/session_testing.h"

namespace reprise {
namespace {

const size_t kPageBytes = small_layout().page_bytes();

Values values_from(int32_t first, size_t count) {
  Values values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<int32_t>(i);
  return values;
}

/// A sequence that rests, with tokens first, first + 1, ...
SequenceKv resting(PagePool& pool, int32_t first, size_t count) {
  SequenceKv sequence(pool);
  EXPECT_TRUE(append(sequence, values_from(first, count)));
  sequence.rest();
  return sequence;
}

class DiskTier : public testing::Test {
 protected:
  PagePool pool(uint32_t n_layer, uint64_t pages, uint64_t disk_pages) {
    PagePool made = small_pool(n_layer, pages);
    EXPECT_TRUE(made.add_disk(folder_.file(""), disk_pages * kPageBytes));
    return made;
  }

  TemporaryFolder folder_;
};

TEST_F(DiskTier, HoldsWhatMemoryHasNoRoomFor) {
  PagePool kv = pool(2, 12, 100);
  EXPECT_EQ(folder_.entries(), 0u);  // the file has no name
  std::deque<SequenceKv> sequences;
  for (int32_t i = 0; i < 6; ++i) sequences.push_back(resting(kv, i * 1000, 40));
  EXPECT_EQ(kv.tiers().memory.bytes, 12 * kPageBytes);
  EXPECT_EQ(kv.tiers().disk.bytes, 24 * kPageBytes);
  EXPECT_EQ(kv.used_bytes(), 36 * kPageBytes);
  for (int32_t i = 0; i < 6; ++i) {
    const auto kept = sequences[static_cast<size_t>(i)].wake();
    ASSERT_TRUE(kept) << kept.error().message;
    EXPECT_EQ(*kept, 40);
    expect_values(sequences[static_cast<size_t>(i)], values_from(i * 1000, 40));
    sequences[static_cast<size_t>(i)].rest();
  }
  sequences.clear();
  EXPECT_EQ(kv.used_bytes(), 0u);
  EXPECT_EQ(kv.tiers().lost_pages, 0u);
}

TEST_F(DiskTier, TakesTheLeastRecentlyUsedAndTheirEndsFirst) {
  PagePool kv = pool(1, 8, 100);
  SequenceKv first = resting(kv, 0, 64), second = resting(kv, 1000, 64);
  ASSERT_TRUE(first.wake());
  first.rest();  // now second is the older
  SequenceKv third(kv);
  ASSERT_TRUE(append(third, values_from(2000, 32)));
  const auto in_memory = [&](const SequenceKv& sequence) {
    std::vector<bool> where;
    for (const PageId page : sequence.pages(0)) where.push_back(kv.in_memory(0, page));
    return where;
  };
  EXPECT_EQ(in_memory(first), std::vector<bool>(4, true));
  EXPECT_EQ(in_memory(second), (std::vector<bool>{true, true, false, false}));
}

TEST_F(DiskTier, LeavesAloneWhatIsInUse) {
  PagePool kv = pool(1, 8, 100);
  SequenceKv used(kv);
  ASSERT_TRUE(append(used, values_from(0, 96)));
  SequenceKv rests = resting(kv, 1000, 32);
  SequenceKv fork = used;
  used.rest();  // its pages are the fork's too
  SequenceKv more(kv);
  ASSERT_TRUE(append(more, values_from(2000, 32)));
  const auto refused = more.reserve(16);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  expect_values(fork, values_from(0, 96));
  EXPECT_FALSE(rests.wake());
  fork.rest();
  ASSERT_TRUE(rests.wake());
  expect_values(rests, values_from(1000, 32));
  expect_values(more, values_from(2000, 32));
}

TEST_F(DiskTier, AFullDiskLeavesTheRestToThePrefixCache) {
  PagePool kv = pool(1, 8, 4);
  PrefixCache cache(kv);
  kv.set_reclaim([&](uint64_t pages) { cache.make_room(pages); });
  for (int32_t i = 0; i < 5; ++i) {
    SequenceKv sequence(kv);
    ASSERT_TRUE(append(sequence, values_from(i * 1000, 64))) << i;
    cache.insert(values_from(i * 1000, 64), sequence);
  }
  EXPECT_EQ(cache.nodes(), 12u);
  for (const int32_t i : {4, 2}) {
    SequenceKv found = cache.match(values_from(i * 1000, 64), 64);
    ASSERT_TRUE(found.wake());
    expect_values(found, values_from(i * 1000, 64));
  }
}

TEST_F(DiskTier, ADamagedPageIsLostAndComputedAgain) {
  PagePool kv = pool(2, 8, 100);
  PrefixCache cache(kv);
  const Values tokens = values_from(0, 64);
  {
    SequenceKv sequence(kv);
    ASSERT_TRUE(append(sequence, tokens));
    cache.insert(tokens, sequence);
  }
  { SequenceKv other = resting(kv, 5000, 64); }  // pushes everything out
  const int file = hidden_file(folder_.file(""));
  ASSERT_GE(file, 0);
  // Slots are filled in an order that is nobody's business: damage block 2 of layer 1 by content.
  std::vector<std::byte> page(kPageBytes), want(kPageBytes);
  SequenceKv found = cache.match(tokens, 64);
  ASSERT_TRUE(kv.read(want.data(), 1, found.pages(1)[2]));
  bool damaged = false;
  for (off_t slot = 0; ::pread(file, page.data(), kPageBytes, slot) > 0;
       slot += static_cast<off_t>(kPageBytes)) {
    if (page != want) continue;
    page[100] ^= std::byte{1};
    ASSERT_EQ(::pwrite(file, page.data(), kPageBytes, slot), static_cast<ssize_t>(kPageBytes));
    damaged = true;
  }
  ASSERT_TRUE(damaged);
  EXPECT_FALSE(kv.read(want.data(), 1, found.pages(1)[2]));
  const auto kept = found.wake();
  ASSERT_TRUE(kept) << kept.error().message;
  EXPECT_EQ(*kept, 32);
  EXPECT_EQ(kv.tiers().lost_pages, 1u);
  found.truncate(*kept);
  ASSERT_TRUE(append(found, values_from(32, 32)));
  expect_values(found, tokens);
  cache.insert(tokens, found);  // takes what was computed again
  found = SequenceKv(kv);
  SequenceKv again = cache.match(tokens, 64);
  EXPECT_EQ(*again.wake(), 64);
  expect_values(again, tokens);
}

TEST_F(DiskTier, GoesOnWithoutADiskThatCannotBeWritten) {
  PagePool kv = pool(1, 8, 100);
  PrefixCache cache(kv);
  kv.set_reclaim([&](uint64_t pages) { cache.make_room(pages); });
  const auto read_prompt = [&](int32_t first) {
    SequenceKv sequence(kv);
    ASSERT_TRUE(append(sequence, values_from(first, 64)));
    cache.insert(values_from(first, 64), sequence);
  };
  for (int32_t i = 0; i < 3; ++i) read_prompt(i * 1000);
  EXPECT_EQ(kv.tiers().disk.bytes, 4 * kPageBytes);
  struct rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const struct rlimit none = {4 * kPageBytes, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  for (int32_t i = 3; i < 6; ++i) read_prompt(i * 1000);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_THAT(kv.tiers().disk_error, testing::HasSubstr("cannot write KV"));
  for (int32_t i = 4; i < 6; ++i) {
    SequenceKv found = cache.match(values_from(i * 1000, 64), 64);
    ASSERT_TRUE(found.wake());
    expect_values(found, values_from(i * 1000, 64));
  }
}

TEST_F(DiskTier, ARestingSequenceIsSavedFromWhereItLies) {
  PagePool kv = pool(2, 8, 100);
  const SequenceKv sequence = resting(kv, 0, 50);
  { SequenceKv other = resting(kv, 5000, 64); }
  EXPECT_GT(kv.tiers().disk.bytes, 0u);
  const KvIdentity identity = {1, 2, 3};
  const std::string path = folder_.file("saved.kv");
  const auto saved = save_session(path, identity, {values_from(7, 50), ""}, sequence);
  ASSERT_TRUE(saved) << saved.error().message;
  PagePool apart = small_pool(2, 20);
  SequenceKv restored(apart);
  ASSERT_TRUE(load_session(path, identity, restored));
  expect_values(restored, values_from(0, 50));
}

TEST_F(DiskTier, ASessionLargerThanMemoryIsRestored) {
  const KvIdentity identity = {1, 2, 3};
  const std::string path = folder_.file("saved.kv");
  PagePool ample = small_pool(2, 900);
  SequenceKv sequence = resting(ample, 0, 6410);  // 802 pages
  sequence.evict(1, 16, 32);
  ASSERT_TRUE(save_session(path, identity, {values_from(7, 6410), ""}, sequence));
  PagePool kv = pool(2, 300, 1000);
  const SequenceKv other = resting(kv, 5000, 64);
  SequenceKv restored(kv);
  const auto stops = [](const Progress& at) { return at.done < 2'000'000; };
  EXPECT_FALSE(load_session(path, identity, restored, stops));
  EXPECT_EQ(kv.used_bytes(), other.bytes());
  ASSERT_TRUE(load_session(path, identity, restored));
  EXPECT_EQ(restored.bytes(), 801 * kPageBytes);
  EXPECT_LE(kv.tiers().memory.bytes, 300 * kPageBytes);
  EXPECT_EQ(restored.page_out(), 6410);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (size_t block = 0; block < restored.pages(layer).size(); ++block) {
      if (restored.pages(layer)[block] == kNoPage) continue;
      const Held held(restored, layer, block, block + 1);
      ASSERT_TRUE(held.status) << held.status.error().message;
      const auto at = static_cast<int32_t>(16 * block);
      EXPECT_TRUE(holds_token(restored, layer, at, at)) << layer << " " << at;
    }
  }
  PagePool few = pool(2, 300, 400);
  SequenceKv none(few);
  EXPECT_EQ(load_session(path, identity, none).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(few.used_bytes(), 0u);
}

TEST_F(DiskTier, SaysWhatIsWrongWithTheFolder) {
  PagePool kv = small_pool(1, 8);
  const auto missing = kv.add_disk(folder_.file("missing"), 0);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kFileUnwritable);
  EXPECT_THAT(missing.error().message, testing::HasSubstr("--kv-disk"));
  const auto small = kv.add_disk(folder_.file(""), 100);
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, ErrorCode::kInvalidArgument);
}

/// One slab whose copies are done as late as they may be.
class LateMemory : public PageMemory {
 public:
  explicit LateMemory(size_t pages) : bytes_(pages * kPageBytes) {}
  std::byte* slab(uint32_t) const override { return const_cast<std::byte*>(bytes_.data()); }
  bool provide(std::byte*, size_t) override { return true; }
  void give_back(std::byte*, size_t) override {}
  bool reachable() const override { return false; }
  Status read(std::byte* host, const std::byte* from, size_t bytes) override {
    std::copy_n(from, bytes, host);
    return {};
  }
  Status write(std::byte* to, const std::byte* host, size_t bytes) override {
    std::copy_n(host, bytes, to);
    return {};
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    std::copy_n(from, bytes, to);
  }
  Status start_copies(std::span<const PageCopy> copies, size_t, bool arriving) override {
    for (const PageCopy& page : copies) pending_.push_back(page);
    if (!arriving) return {};
    for (size_t i = 1; i < copies.size(); ++i) EXPECT_LE(copies[i - 1].layer, copies[i].layer);
    return {};
  }
  void join() override {
    for (const PageCopy& page : pending_) {
      copy(slab(0) + page.to * kPageBytes, slab(0) + page.from * kPageBytes, kPageBytes);
    }
    pending_.clear();
  }
  size_t pending() const { return pending_.size(); }

 private:
  std::vector<std::byte> bytes_;
  std::vector<PageCopy> pending_;
};

class HostTier : public testing::Test {
 protected:
  PagePool pool(uint32_t n_layer, uint32_t device, uint32_t host) {
    auto memory = std::make_unique<LateMemory>(device + host);
    memory_ = memory.get();
    return PagePool::create(PageFrames(std::move(memory), kPageBytes, device, host), small_layout(),
                            n_layer, {});
  }
  /// As passes do that read the sequence.
  void expect(const SequenceKv& sequence, const Values& values) {
    memory_->join();
    expect_values(sequence, values);
  }

  LateMemory* memory_ = nullptr;
  TemporaryFolder folder_;
};

TEST_F(HostTier, PagesAtRestMoveDownAndComeBack) {
  PagePool kv = pool(2, 16, 64);
  SequenceKv first = resting(kv, 0, 100);
  SequenceKv second(kv);
  const uint64_t moves = kv.moves();
  ASSERT_TRUE(append(second, values_from(1000, 100)));
  EXPECT_GT(kv.moves(), moves);
  EXPECT_EQ(kv.tiers().memory.bytes, 16 * kPageBytes);
  EXPECT_EQ(kv.tiers().host.bytes, 12 * kPageBytes);
  expect(second, values_from(1000, 100));
  second.rest();
  ASSERT_TRUE(first.wake());
  expect(first, values_from(0, 100));
  EXPECT_FALSE(kv.reads_host());
  EXPECT_EQ(kv.tiers().host.bytes, 12 * kPageBytes);  // the other's
}

TEST_F(HostTier, WhatIsFreedByCopiesIsReusedAfterThem) {
  PagePool kv = pool(1, 8, 64);
  SequenceKv first = resting(kv, 0, 128);
  SequenceKv second(kv);
  ASSERT_TRUE(second.reserve(64));
  EXPECT_EQ(memory_->pending(), 0u);  // whoever writes there joined the copies
  for (int32_t i = 0; i < 64; ++i) write_token(second, i, 1000 + i);
  second.commit(64);
  second.rest();
  ASSERT_TRUE(first.wake());
  EXPECT_GT(memory_->pending(), 0u);
  expect(first, values_from(0, 128));
  first.rest();
  ASSERT_TRUE(second.wake());
  expect(second, values_from(1000, 64));
}

TEST_F(HostTier, ASequenceLargerThanMemoryIsReadInPlace) {
  PagePool kv = pool(2, 8, 64);
  SequenceKv large(kv);
  ASSERT_TRUE(append(large, values_from(0, 200)));
  EXPECT_TRUE(kv.reads_host());
  large.rest();
  SequenceKv small = resting(kv, 5000, 60);
  ASSERT_TRUE(large.wake());
  expect(large, values_from(0, 200));
  EXPECT_TRUE(kv.reads_host());
  large.truncate(64);
  ASSERT_TRUE(large.wake());  // now it fits
  expect(large, values_from(0, 64));
  EXPECT_FALSE(kv.reads_host());
  ASSERT_TRUE(small.wake());
  expect(small, values_from(5000, 60));
}

TEST_F(HostTier, NoRoomAnywhereIsToldApart) {
  PagePool kv = pool(1, 4, 4);
  SequenceKv used(kv), more(kv);
  ASSERT_TRUE(append(used, values_from(0, 100)));
  const auto refused = more.reserve(32);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  expect(used, values_from(0, 100));
}

// Random use of all tiers against a model of what every sequence holds.
TEST_F(HostTier, RandomUseOfThreeTiersKeepsContents) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const uint32_t n_layer = 1 + random() % 3;
    PagePool kv = pool(n_layer, n_layer * 8 + random() % 40, random() % 40);
    if (random() % 4 > 0) {
      ASSERT_TRUE(kv.add_disk(folder_.file(""), (1 + random() % 200) * kPageBytes));
    }
    PrefixCache cache(kv);
    kv.set_reclaim([&](uint64_t pages) { cache.make_room(pages); });
    struct Held {
      SequenceKv kv;
      Values values;
    };
    std::deque<Held> all;
    for (int step = 0; step < 200; ++step) {
      const uint32_t what = random() % 8;
      if (all.empty() || what < 2) {
        Values values = values_from(static_cast<int32_t>(random() % 6) * 1000, random() % 100);
        SequenceKv made = cache.match(values, values.size());
        if (made.wake()) {
          const Values rest(values.begin() + made.length(), values.end());
          if (append(made, rest)) {
            expect(made, values);
            cache.insert(values, made);
            made.rest();
            all.push_back({std::move(made), std::move(values)});
          }
        }
      } else {
        Held& held = all[random() % all.size()];
        if (what == 2) {
          all.push_back({held.kv, held.values});
        } else if (what == 3) {
          std::swap(held, all.back());
          all.pop_back();
        } else if (what == 4) {
          held.values.resize(random() % (held.values.size() + 1));
          held.kv.truncate(static_cast<int32_t>(held.values.size()));
        } else if (held.kv.wake()) {
          expect(held.kv, held.values);
          const Values more = random_values(random, random() % 40);
          if (append(held.kv, more)) {
            held.values.insert(held.values.end(), more.begin(), more.end());
          }
          expect(held.kv, held.values);
          held.kv.rest();
        }
      }
      ASSERT_LE(kv.used_bytes(), kv.limit_bytes());
    }
    EXPECT_EQ(kv.tiers().lost_pages, 0u);
    all.clear();
    cache.clear();
    EXPECT_EQ(kv.used_bytes(), 0u);
  }
}

}  // namespace
}  // namespace reprise

// Sequences that are used while most of their pages lie on disk.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "kv/hidden_file.h"
#include "kv/kv_testing.h"
#include "kv/paged_testing.h"
#include "kv/session_testing.h"

namespace reprise {
namespace {

const size_t kPageBytes = small_layout().page_bytes();

class Paging : public testing::Test {
 protected:
  PagePool pool(uint32_t n_layer, uint64_t pages, uint64_t disk_pages) {
    PagePool made = small_pool(n_layer, pages);
    EXPECT_TRUE(made.add_disk(folder_.file(""), disk_pages * kPageBytes));
    return made;
  }
  /// A paged out sequence of random values.
  SequenceKv paged(PagePool& kv, size_t count, Values& values) {
    SequenceKv made(kv);
    made.page_out();
    values.clear();
    while (values.size() < count) {
      const Values more = random_values(random_, std::min<size_t>(24, count - values.size()));
      EXPECT_TRUE(append_paged(made, more));
      values.insert(values.end(), more.begin(), more.end());
    }
    return made;
  }
  void damage() {
    const int file = hidden_file(folder_.file(""));
    ASSERT_GE(file, 0);
    char byte = 0;
    for (off_t at = 100; ::pread(file, &byte, 1, at) == 1; at += static_cast<off_t>(kPageBytes)) {
      byte = static_cast<char>(byte ^ 4);
      ASSERT_EQ(::pwrite(file, &byte, 1, at), 1);
    }
  }

  TemporaryFolder folder_;
  std::mt19937 random_{1};
};

TEST_F(Paging, ASequenceLargerThanMemoryIsUsed) {
  PagePool kv = pool(3, 12, 200);
  Values values;
  SequenceKv large = paged(kv, 500, values);
  EXPECT_EQ(large.bytes(), 96 * kPageBytes);
  EXPECT_LE(kv.tiers().memory.bytes, 12 * kPageBytes);
  for (int round = 0; round < 3; ++round) expect_paged(large, values);
  EXPECT_GT(kv.paging().fetched, 200u);
  // Pages that did not change are not written again.
  EXPECT_LE(kv.tiers().disk.moved_in_bytes, 140 * kPageBytes);
  large.rest();
  EXPECT_FALSE(large.paged());
  large = SequenceKv(kv);
  EXPECT_EQ(kv.used_bytes(), 0u);
}

TEST_F(Paging, WhatIsWrittenReplacesTheCopyOnDisk) {
  PagePool kv = pool(2, 8, 200);
  Values values;
  SequenceKv large = paged(kv, 120, values);
  for (int32_t i = 0; i < 8; ++i) {
    expect_paged(large, values);  // the last page has gone to disk and come back
    ASSERT_TRUE(append_paged(large, {i}));
    values.push_back(i);
  }
  expect_paged(large, values);
}

TEST_F(Paging, AfterWakingCopiesAreNotTrusted) {
  PagePool kv = pool(1, 8, 200);
  Values values, others;
  SequenceKv one = paged(kv, 40, values);
  SequenceKv other = paged(kv, 120, others);
  expect_paged(one, values);
  one.rest();
  ASSERT_TRUE(one.wake());
  ASSERT_TRUE(append(one, {7}));
  values.push_back(7);
  one.rest();
  expect_paged(other, others);
  one.page_out();
  expect_paged(one, values);
}

TEST_F(Paging, ADiskThatHoldsJustWhatMemoryDoesNotIsEnough) {
  PagePool kv = pool(2, 16, 40);
  Values values;
  SequenceKv large = paged(kv, 16 * 26, values);  // 52 of 56 pages
  for (int round = 0; round < 3; ++round) expect_paged(large, values);
  EXPECT_FALSE(large.reserve(16 * 8));
  expect_paged(large, values);
}

TEST_F(Paging, AForkOfAPagedSequenceIsItsOwn) {
  PagePool kv = pool(2, 12, 200);
  Values values;
  SequenceKv one = paged(kv, 200, values);
  SequenceKv two = one;
  EXPECT_TRUE(two.paged());
  Values more = values;
  ASSERT_TRUE(append_paged(two, {1, 2, 3}));
  more.insert(more.end(), {1, 2, 3});
  ASSERT_TRUE(append_paged(one, {4}));
  values.push_back(4);
  expect_paged(one, values);
  expect_paged(two, more);
}

TEST_F(Paging, MoreThanMemoryIsNotHeldAtATime) {
  PagePool kv = pool(1, 8, 200);
  Values values;
  SequenceKv large = paged(kv, 320, values);
  {
    const Held all(large, 0, 0, 20);
    ASSERT_FALSE(all.status);
    EXPECT_EQ(all.status.error().code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(all.status.error().message, testing::HasSubstr("--kv-memory"));
  }
  expect_paged(large, values, 8);
  const Held some(large, 0, 0, 6);
  ASSERT_TRUE(some.status);
  EXPECT_FALSE(Held(large, 0, 6, 10).status);
  EXPECT_TRUE(Held(large, 0, 6, 8).status);
}

TEST_F(Paging, PagesReadAheadAreThere) {
  PagePool kv = pool(1, 8, 200);
  Values values;
  SequenceKv large = paged(kv, 320, values);
  const auto pages = large.pages(0);
  const KvPaging before = kv.paging();
  EXPECT_TRUE(kv.prefetch(0, pages.first(4), kv.now()));
  EXPECT_TRUE(kv.prefetch(0, pages.first(4), kv.now()));
  { EXPECT_TRUE(Held(large, 0, 0, 3).status); }
  KvPaging came = kv.paging() - before;
  EXPECT_EQ(came.prefetched, 4u);
  EXPECT_EQ(came.hits + came.late, 3u);
  EXPECT_EQ(came.fetched, 0u);
  // What was used or expected lately stays, however much is expected.
  const uint64_t since = kv.now() - (uint64_t{4} << 20);
  EXPECT_FALSE(kv.prefetch(0, pages.subspan(8, 8), since));
  { EXPECT_TRUE(Held(large, 0, 0, 4).status); }
  came = kv.paging() - before;
  EXPECT_EQ(came.hits + came.late, 7u);
  EXPECT_EQ(came.fetched, 0u);
  EXPECT_EQ(came.unused, 0u);
  expect_paged(large, values);
  const uint64_t unused = kv.paging().unused;
  EXPECT_TRUE(kv.prefetch(0, large.pages(0).first(2), kv.now()));
  while (!kv.in_memory(0, large.pages(0)[0]) || !kv.in_memory(0, large.pages(0)[1])) {
    kv.spare(0, 0);  // looks whether they are there
  }
  EXPECT_EQ(kv.give_up(0, large.pages(0).first(4), 4), 2u);
  EXPECT_EQ(kv.paging().unused, unused + 2);
}

TEST_F(Paging, WhatIsReadAheadMayBeDropped) {
  PagePool kv = pool(2, 16, 200);
  for (int round = 0; round < 50; ++round) {
    Values values;
    SequenceKv large = paged(kv, 320, values);
    kv.prefetch(0, large.pages(0).first(6), kv.now());
    kv.prefetch(1, large.pages(1).first(6), kv.now());
    if (round % 2 == 0) large.truncate(20);
    values.resize(static_cast<size_t>(large.length()));
    if (round % 3 == 0) expect_paged(large, values);
  }
  EXPECT_EQ(kv.used_bytes(), 0u);
}

TEST_F(Paging, DamageIsFoundAndNothingElseIsLost) {
  for (const bool ahead : {false, true}) {
    PagePool kv = pool(1, 8, 200);
    Values values, others;
    SequenceKv large = paged(kv, 320, values);
    damage();
    if (ahead) kv.prefetch(0, large.pages(0).first(2), kv.now());
    {
      const Held lost(large, 0, 0, 2);
      ASSERT_FALSE(lost.status);
      EXPECT_EQ(lost.status.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(lost.status.error().message, testing::HasSubstr("--kv-disk"));
    }
    EXPECT_FALSE(Held(large, 0, 0, 1).status);
    EXPECT_EQ(kv.tiers().lost_pages, 2u);
    large.rest();
    EXPECT_EQ(large.page_out(), 0);
    large = SequenceKv(kv);
    EXPECT_EQ(kv.used_bytes(), 0u);
    SequenceKv other = paged(kv, 320, others);
    expect_paged(other, others);
  }
}

// Attention multiplies unused slots by zero: what lay on the disk instead may be no number.
TEST_F(Paging, NothingOfDamageStaysInPages) {
  for (const int way : {0, 1, 2}) {
    PagePool kv = pool(1, 8, 200);
    Values values;
    SequenceKv sequence = paged(kv, 128, values);
    sequence.rest();
    { ASSERT_TRUE(SequenceKv(kv).reserve(128)); }  // pushes everything out
    const std::vector<char> garbage(8 * kPageBytes, '\xff');
    ASSERT_EQ(::pwrite(hidden_file(folder_.file("")), garbage.data(), garbage.size(), 0),
              static_cast<ssize_t>(garbage.size()));
    if (way == 0) {
      EXPECT_EQ(*sequence.wake(), 0);
    }
    if (way > 0) {
      EXPECT_EQ(sequence.page_out(), 128);
    }
    if (way == 1) {
      EXPECT_FALSE(Held(sequence, 0, 0, 8).status);
    }
    if (way == 2) {
      EXPECT_TRUE(kv.prefetch(0, sequence.pages(0), kv.now()));
    }
    sequence = SequenceKv(kv);
    ASSERT_TRUE(sequence.reserve(128));
    std::vector<float> k(64), v(64);
    for (size_t at = 0; at < 128; ++at) {
      kernels::load_token(kv.layout(), sequence.page(0, at / 16), at % 16, k.data(), v.data());
      for (size_t i = 0; i < k.size(); ++i) ASSERT_TRUE(std::isfinite(k[i] + v[i])) << way << at;
    }
  }
}

TEST_F(Paging, AShortFileIsFound) {
  PagePool kv = pool(1, 8, 200);
  Values values;
  SequenceKv large = paged(kv, 320, values);
  ASSERT_EQ(::ftruncate(hidden_file(folder_.file("")), static_cast<off_t>(kPageBytes) + 100), 0);
  const auto kept = [&] {
    size_t lost = 0;
    for (size_t block = 0; block < 20; ++block) {
      const Held held(large, 0, block, block + 1);
      if (held.status) {
        EXPECT_TRUE(holds_token(large, 0, static_cast<int32_t>(block * 16), values[block * 16]));
      } else {
        EXPECT_EQ(held.status.error().code, ErrorCode::kCorrupt);
        ++lost;
      }
    }
    return lost;
  };
  EXPECT_GT(kept(), 5u);
  EXPECT_EQ(kv.tiers().lost_pages, kept());
}

// Random use against a model of what every sequence holds.
TEST_F(Paging, RandomUseKeepsContents) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const uint32_t n_layer = 1 + random() % 3;
    PagePool kv = pool(n_layer, n_layer * 8 + random() % 20, 8 + random() % 200);
    struct Sequence {
      SequenceKv kv;
      Values values;
    };
    std::deque<Sequence> all;
    for (int step = 0; step < 150; ++step) {
      const uint32_t what = random() % 9;
      if (all.empty() || what == 0) {
        all.push_back({SequenceKv(kv), {}});
        all.back().kv.page_out();
        continue;
      }
      Sequence& one = all[random() % all.size()];
      const auto blocks = PageMap::blocks_of(one.values.size());
      const uint32_t layer = random() % n_layer;
      if (what == 1) {
        all.push_back({one.kv, one.values});
      } else if (what == 2) {
        std::swap(one, all.back());
        all.pop_back();
      } else if (what == 3) {
        one.values.resize(random() % (one.values.size() + 1));
        one.kv.truncate(static_cast<int32_t>(one.values.size()));
      } else if (what == 4) {
        one.kv.rest();
        if (random() % 2 == 0 && one.kv.wake()) {
          expect_values(one.kv, one.values);
          // One that is awake may take the place that the others' pages are exchanged through.
          if (kv.free_pages() > n_layer && append(one.kv, {5})) one.values.push_back(5);
        }
        EXPECT_EQ(one.kv.page_out(), one.kv.length());
      } else if (what == 5 && blocks > 0) {
        const size_t first = random() % blocks;
        kv.prefetch(layer, one.kv.pages(layer).subspan(first, std::min<size_t>(4, blocks - first)),
                    random() % 2 == 0 ? kv.now() : 0);
      } else if (what == 6) {
        kv.give_up(layer, one.kv.pages(layer), random() % 8);
      } else {
        const Values more = random_values(random, random() % 40);
        if (append_paged(one.kv, more)) {
          one.values.insert(one.values.end(), more.begin(), more.end());
        }
        expect_paged(one.kv, one.values);
      }
      ASSERT_LE(kv.used_bytes(), kv.limit_bytes());
    }
    EXPECT_EQ(kv.tiers().lost_pages, 0u);
    all.clear();
    EXPECT_EQ(kv.used_bytes(), 0u);
  }
}

}  // namespace
}  // namespace reprise

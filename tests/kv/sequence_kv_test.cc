#include "kv/sequence_kv.h"

#include <set>

#include "kv/kv_testing.h"

namespace reprise {
namespace {

using kernels::KvType;

class SequenceKvOfType : public testing::TestWithParam<KvType> {};
INSTANTIATE_TEST_SUITE_P(Types, SequenceKvOfType, testing::ValuesIn(kernels::kKvTypes));

std::vector<int32_t> counted(int32_t begin, int32_t count) {
  std::vector<int32_t> values;
  for (int32_t i = 0; i < count; ++i) values.push_back(begin + i);
  return values;
}

ErrorCode reserve_error(SequenceKv& sequence, size_t count) {
  const Status status = sequence.reserve(count);
  EXPECT_FALSE(status);
  return status ? ErrorCode::kInvalidArgument : status.error().code;
}

TEST(SequenceKv, ForkSharesUntilWritten) {
  PagePool pool = small_pool(2, 100);
  SequenceKv first(pool);
  ASSERT_TRUE(append(first, counted(0, 40)));
  const uint64_t before = pool.used_bytes();
  SequenceKv second = first;
  EXPECT_EQ(pool.used_bytes(), before);
  EXPECT_EQ(second.bytes(), first.bytes());
  ASSERT_TRUE(append(second, counted(1000, 3)));
  EXPECT_EQ(pool.used_bytes(), before + 2 * pool.page_bytes());  // one copied page per layer
  ASSERT_TRUE(append(first, counted(2000, 3)));
  EXPECT_EQ(pool.used_bytes(), before + 2 * pool.page_bytes());  // now alone: written in place
  auto values = counted(0, 40);
  auto others = values;
  for (const int32_t value : counted(2000, 3)) values.push_back(value);
  for (const int32_t value : counted(1000, 3)) others.push_back(value);
  expect_values(first, values);
  expect_values(second, others);
}

TEST(SequenceKv, ForkLeavesReservedRoomBehind) {
  PagePool pool = small_pool(1, 100);
  SequenceKv first(pool);
  ASSERT_TRUE(append(first, counted(0, 20)));
  ASSERT_TRUE(first.reserve(100));
  const SequenceKv second = first;
  EXPECT_EQ(first.pages(0).size(), 8u);
  EXPECT_EQ(second.pages(0).size(), 2u);
  first.truncate(20);
  EXPECT_EQ(first.pages(0).size(), 2u);
}

TEST(SequenceKv, ReserveIsAllOrNothing) {
  PagePool pool = small_pool(3, 10);
  SequenceKv sequence(pool);
  ASSERT_TRUE(append(sequence, counted(0, 40)));  // 3 pages in each of 3 layers
  EXPECT_TRUE(sequence.reserve(8));
  EXPECT_EQ(reserve_error(sequence, 9), ErrorCode::kOutOfMemory);  // 3 pages, 1 free
  EXPECT_EQ(pool.free_pages(), 1u);
  EXPECT_EQ(sequence.pages(0).size(), 3u);
  const SequenceKv fork = sequence;
  EXPECT_EQ(reserve_error(sequence, 1), ErrorCode::kOutOfMemory);  // copies of 3 last pages
  EXPECT_EQ(pool.free_pages(), 1u);
  expect_values(sequence, counted(0, 40));
  expect_values(fork, counted(0, 40));
}

TEST(SequenceKv, RefusesMoreTokensThanAPositionCanName) {
  PagePool pool = small_pool(1, 10);
  SequenceKv sequence(pool);
  ASSERT_TRUE(append(sequence, {1}));
  EXPECT_EQ(reserve_error(sequence, size_t{1} << 31), ErrorCode::kOutOfMemory);
  EXPECT_EQ(reserve_error(sequence, ~size_t{0}), ErrorCode::kOutOfMemory);
}

TEST(SequenceKv, EvictFreesOnlyWholePagesOfStoredTokens) {
  PagePool pool = small_pool(2, 100);
  SequenceKv sequence(pool);
  ASSERT_TRUE(append(sequence, counted(0, 100)));
  EXPECT_EQ(sequence.evict(0, 17, 63), 1u);  // [32, 48)
  EXPECT_EQ(sequence.evict(0, 16, 64), 2u);  // [16, 32) and [48, 64)
  EXPECT_EQ(sequence.evict(0, 16, 64), 0u);
  EXPECT_EQ(sequence.evict(0, 90, 1000), 0u);  // [96, 100) is not full
  EXPECT_EQ(sequence.evict(1, -5, 1000), 6u);
  EXPECT_EQ(sequence.evict(0, 50, 20), 0u);
  EXPECT_EQ(pool.used_bytes(), (4 + 1) * pool.page_bytes());
  EXPECT_EQ(sequence.bytes(), pool.used_bytes());
  expect_values(sequence, counted(0, 100));
}

TEST(SequenceKv, EvictingASharedPageKeepsItForTheFork) {
  PagePool pool = small_pool(1, 100);
  SequenceKv sequence(pool);
  ASSERT_TRUE(append(sequence, counted(0, 64)));
  const SequenceKv fork = sequence;
  EXPECT_EQ(sequence.evict(0, 0, 64), 4u);
  EXPECT_EQ(pool.used_bytes(), 4 * pool.page_bytes());
  expect_values(fork, counted(0, 64));
}

TEST(SequenceKv, DoesNotWriteIntoAnEvictedPage) {
  PagePool pool = small_pool(2, 100);
  SequenceKv sequence(pool);
  ASSERT_TRUE(append(sequence, counted(0, 64)));
  sequence.evict(1, 16, 48);
  sequence.truncate(40);
  const uint64_t before = pool.used_bytes();
  EXPECT_EQ(reserve_error(sequence, 1), ErrorCode::kUnsupported);
  EXPECT_EQ(pool.used_bytes(), before);
  sequence.truncate(32);
  ASSERT_TRUE(append(sequence, counted(500, 5)));
  EXPECT_TRUE(holds_token(sequence, 1, 33, 501));
}

TEST(SequenceKv, TruncateIgnoresWhatIsNotThere) {
  PagePool pool = small_pool(1, 10);
  SequenceKv sequence(pool);
  ASSERT_TRUE(append(sequence, counted(0, 20)));
  sequence.truncate(30);
  EXPECT_EQ(sequence.length(), 20);
  sequence.truncate(-1);
  EXPECT_EQ(sequence.length(), 0);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(SequenceKv, FreedPagesComeBackInOrder) {
  PagePool pool = small_pool(1, 100);
  {
    SequenceKv sequence(pool);
    ASSERT_TRUE(append(sequence, counted(0, 160)));
  }
  SequenceKv sequence(pool);
  ASSERT_TRUE(append(sequence, counted(0, 160)));
  for (PageId i = 0; i < 10; ++i) EXPECT_EQ(sequence.pages(0)[i], i);
}

// A sequence and what it should hold.
struct Modelled {
  SequenceKv kv;
  std::vector<int32_t> values;
  std::vector<std::set<size_t>> holes;  // [n_layer] evicted blocks
};

void check(const Modelled& sequence) {
  expect_values(sequence.kv, sequence.values);
  const size_t blocks = PageMap::blocks_of(sequence.values.size());
  const PageMap map = sequence.kv.page_map();
  for (uint32_t layer = 0; layer < sequence.holes.size(); ++layer) {
    for (size_t block = 0; block < blocks; ++block) {
      const bool present = !sequence.holes[layer].contains(block);
      ASSERT_EQ(sequence.kv.pages(layer)[block] != kNoPage, present);
      ASSERT_EQ(map.has(layer, block), present);
    }
  }
}

uint64_t distinct_pages(const std::vector<Modelled>& sequences, uint32_t n_layer) {
  std::set<std::pair<uint32_t, PageId>> pages;
  for (const Modelled& sequence : sequences) {
    for (uint32_t layer = 0; layer < n_layer; ++layer) {
      for (const PageId page : sequence.kv.pages(layer)) {
        if (page != kNoPage) pages.emplace(layer, page);
      }
    }
  }
  return pages.size();
}

void random_append(Modelled& sequence, PagePool& pool, std::mt19937& random) {
  const auto values = random_values(random, random() % 40);
  if (random() % 4 == 0 && sequence.kv.reserve(random() % 60)) check(sequence);
  const uint64_t used = pool.used_bytes();
  const size_t last = sequence.values.size() / kPageTokens;
  const bool partial = sequence.values.size() % kPageTokens != 0;
  bool into_hole = false;
  for (const auto& holes : sequence.holes) into_hole |= partial && holes.contains(last);
  if (append(sequence.kv, values)) {
    ASSERT_TRUE(!into_hole || values.empty());
    sequence.values.insert(sequence.values.end(), values.begin(), values.end());
  } else {
    ASSERT_EQ(pool.used_bytes(), used);
    const uint64_t most = sequence.holes.size() * (values.size() / kPageTokens + 3);
    ASSERT_TRUE(into_hole || pool.free_pages() < most);
  }
}

void random_evict(Modelled& sequence, std::mt19937& random) {
  const auto layer = static_cast<uint32_t>(random() % sequence.holes.size());
  const auto begin = static_cast<int32_t>(random() % 80);
  const auto end = begin + static_cast<int32_t>(random() % 120);
  size_t expected = 0;
  for (size_t block = 0; (block + 1) * kPageTokens <= sequence.values.size(); ++block) {
    const auto first = static_cast<int32_t>(block * kPageTokens);
    if (first < begin || first + static_cast<int32_t>(kPageTokens) > end) continue;
    expected += sequence.holes[layer].insert(block).second ? 1 : 0;
  }
  ASSERT_EQ(sequence.kv.evict(layer, begin, end), expected);
}

void random_truncate(Modelled& sequence, std::mt19937& random) {
  const size_t length = random() % (sequence.values.size() + 1);
  sequence.kv.truncate(static_cast<int32_t>(length));
  sequence.values.resize(length);
  for (auto& holes : sequence.holes) {
    holes.erase(holes.lower_bound(PageMap::blocks_of(length)), holes.end());
  }
}

TEST_P(SequenceKvOfType, RandomUseMatchesAModel) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const uint32_t n_layer = 1 + random() % 3;
    PagePool pool = small_pool(n_layer, n_layer * (10 + random() % 40), GetParam());
    {
      std::vector<Modelled> sequences;
      for (int step = 0; step < 150; ++step) {
        const size_t which = sequences.empty() ? 0 : random() % sequences.size();
        const uint32_t action = random() % 10;
        if (sequences.empty() || action == 0) {
          sequences.push_back({SequenceKv(pool), {}, std::vector<std::set<size_t>>(n_layer)});
        } else if (action == 1) {
          sequences.emplace_back(sequences[which]);
        } else if (action == 2) {
          std::swap(sequences[which], sequences.back());
          sequences.pop_back();
        } else if (action == 3) {
          random_truncate(sequences[which], random);
        } else if (action == 4) {
          random_evict(sequences[which], random);
        } else {
          random_append(sequences[which], pool, random);
        }
        if (testing::Test::HasFatalFailure()) return;
        ASSERT_EQ(pool.used_bytes(), distinct_pages(sequences, n_layer) * pool.page_bytes());
        if (step % 10 == 0) {
          for (const Modelled& sequence : sequences) check(sequence);
        }
      }
      for (const Modelled& sequence : sequences) check(sequence);
    }
    ASSERT_EQ(pool.used_bytes(), 0u);
  }
}

TEST(SequenceKv, AnOwnPageIsCopiedOnceAndTakenWhereThereIsNone) {
  PagePool pool = small_pool(2, 12);
  SequenceKv first(pool);
  ASSERT_TRUE(append(first, counted(0, 48)));
  SequenceKv second = first;
  ASSERT_TRUE(second.own_page(0, 1));
  EXPECT_EQ(pool.free_pages(), 5u);
  ASSERT_TRUE(second.own_page(0, 1));  // it is by now
  EXPECT_EQ(pool.free_pages(), 5u);
  EXPECT_NE(second.pages(0)[1], first.pages(0)[1]);
  expect_values(second, counted(0, 48));
  second.evict(1, 0, 48);
  ASSERT_TRUE(second.own_page(1, 1));
  EXPECT_NE(second.pages(1)[1], kNoPage);
  EXPECT_NE(second.pages(1)[1], first.pages(1)[1]);
  EXPECT_EQ(second.evict(1, 0, 48), 1u);  // not taken for one that is evicted already
  SequenceKv hog(pool);
  ASSERT_TRUE(append(hog, counted(0, 32)));
  ASSERT_TRUE(second.own_page(0, 0));  // the last page
  const Status status = second.own_page(0, 2);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(second.pages(0)[2], first.pages(0)[2]);
  expect_values(first, counted(0, 48));
}

}  // namespace
}  // namespace reprise

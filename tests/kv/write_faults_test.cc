// A disk that cannot be written, or not at once: what is kept is right, and the rest is told.
#include "kv/write_faults.h"

#include <deque>

#include "kv/hidden_file.h"
#include "kv/kv_testing.h"
#include "kv/paged_testing.h"
#include "kv/prefix_cache.h"
#include "kv/session_testing.h"

namespace reprise {
namespace {

const size_t kPageBytes = small_layout().page_bytes();

class WriteFaults : public testing::Test {
 protected:
  PagePool pool(uint32_t n_layer, uint64_t pages) {
    PagePool made = small_pool(n_layer, pages);
    EXPECT_TRUE(made.add_disk(folder_.file(""), 200 * kPageBytes));
    EXPECT_GE(hidden_file(folder_.file("")), 0);  // no direct transfers from now on
    return made;
  }
  Values values(size_t count) { return random_values(random_, count); }

  /// Whether the page is there, as it was; if not, the disk is told to be why.
  static bool is_there(SequenceKv& kv, const Values& want, uint32_t layer, size_t block,
                       WriteFault::Kind kind) {
    const Held held(kv, layer, block, block + 1);
    if (!held.status) {
      EXPECT_EQ(held.status.error().code, ErrorCode::kOutOfMemory);
      EXPECT_THAT(held.status.error().message, testing::HasSubstr(WriteFault::message(kind)));
      return false;
    }
    for (size_t i = 16 * block; i < std::min(want.size(), 16 * block + 16); ++i) {
      EXPECT_TRUE(holds_token(kv, layer, static_cast<int32_t>(i), want[i])) << layer << " " << i;
    }
    return true;
  }

  TemporaryFolder folder_;
  std::mt19937 random_{1};
};

TEST_F(WriteFaults, ShortAndInterruptedWritesGoOn) {
  PagePool kv = pool(2, 8);
  const Values want = values(320);
  SequenceKv large(kv);
  large.page_out();
  {
    const WriteFault pieces(WriteFault::kPieces);
    for (size_t i = 0; i < want.size(); i += 20) {
      ASSERT_TRUE(append_paged(large, Values(&want[i], &want[i] + 20)));
    }
    EXPECT_GT(pieces.count(), 100);
  }
  EXPECT_EQ(kv.tiers().disk_error, "");
  expect_paged(large, want);
}

TEST_F(WriteFaults, RestingSequencesAreWhatTheyWere) {
  for (const WriteFault::Kind kind : WriteFault::failures()) {
    for (const int after : {0, 3, 9}) {
      SCOPED_TRACE(testing::Message() << kind << " after " << after);
      PagePool kv = pool(1, 8);
      std::deque<Values> all;
      PrefixCache cache(kv);
      kv.set_reclaim([&](uint64_t pages) { cache.make_room(pages); });
      {
        const WriteFault fault(kind, after);
        for (int i = 0; i < 6; ++i) {
          all.push_back(values(64));
          SequenceKv sequence(kv);
          ASSERT_TRUE(append(sequence, all.back())) << i;
          cache.insert(all.back(), sequence);
        }
        EXPECT_GT(fault.count(), 0);
      }
      EXPECT_THAT(kv.tiers().disk_error, testing::HasSubstr(WriteFault::message(kind)));
      size_t found = 0;
      for (const Values& want : all) {
        SequenceKv sequence = cache.match(want, want.size());
        ASSERT_TRUE(sequence.wake());
        found += static_cast<size_t>(sequence.length());
        expect_values(sequence, Values(want.begin(), want.begin() + sequence.length()));
      }
      EXPECT_GE(found, 128u);  // what memory holds
      EXPECT_EQ(kv.tiers().lost_pages, 0u);
    }
  }
}

TEST_F(WriteFaults, ARunningSequenceIsRefusedNotSpoilt) {
  for (const WriteFault::Kind kind : WriteFault::failures()) {
    SCOPED_TRACE(kind);
    PagePool kv = pool(2, 12);
    Values want;
    SequenceKv large(kv);
    large.page_out();
    const auto grow = [&] {
      const Values more = values(20);
      if (!append_paged(large, more)) return false;
      want.insert(want.end(), more.begin(), more.end());
      return true;
    };
    while (want.size() < 200) ASSERT_TRUE(grow());
    {
      const WriteFault fault(kind, 2);
      while (want.size() < 400 && grow()) continue;
      EXPECT_GT(fault.count(), 0);
    }
    ASSERT_LT(want.size(), 400u);
    EXPECT_THAT(kv.tiers().disk_error, testing::HasSubstr(WriteFault::message(kind)));
    EXPECT_FALSE(grow());  // nothing more is written there
    size_t there = 0;
    const size_t blocks = PageMap::blocks_of(want.size());
    for (size_t page = 0; page < 2 * blocks; ++page) {
      const auto layer = static_cast<uint32_t>(page / blocks);
      there += is_there(large, want, layer, page % blocks, kind) ? 1 : 0;
    }
    EXPECT_GE(there, 12u);  // those in memory
    EXPECT_EQ(kv.tiers().lost_pages, 0u);
    large = SequenceKv(kv);
    EXPECT_EQ(kv.used_bytes(), 0u);
    SequenceKv small(kv);
    const Values others = values(60);
    ASSERT_TRUE(append(small, others));
    expect_values(small, others);
  }
}

}  // namespace
}  // namespace reprise

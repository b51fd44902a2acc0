// A disk that cannot be read, or not at once: what cannot be read is told, and never what it was
// not.
#include "kv/read_faults.h"

#include "kv/hidden_file.h"
#include "kv/kv_testing.h"
#include "kv/paged_testing.h"
#include "kv/session_testing.h"

namespace reprise {
namespace {

class ReadFaults : public testing::Test {
 protected:
  /// A sequence of 320 tokens, of whose 40 pages 12 have room in memory.
  void SetUp() override {
    ASSERT_TRUE(pool_.add_disk(folder_.file(""), 200 * small_layout().page_bytes()));
    ASSERT_GE(hidden_file(folder_.file("")), 0);  // no direct transfers from now on
    large_.page_out();
    want_ = random_values(random_, 320);
    for (size_t i = 0; i < want_.size(); i += 20) {
      ASSERT_TRUE(append_paged(large_, Values(&want_[i], &want_[i] + 20)));
    }
  }

  /// Whether the page can be read; then it is as it was.
  bool is_there(uint32_t layer, size_t block) {
    const Held held(large_, layer, block, block + 1);
    if (!held.status) {
      EXPECT_EQ(held.status.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(held.status.error().message, testing::HasSubstr("--kv-disk"));
      return false;
    }
    for (size_t i = 16 * block; i < 16 * block + 16; ++i) {
      EXPECT_TRUE(holds_token(large_, layer, static_cast<int32_t>(i), want_[i])) << layer << i;
    }
    return true;
  }

  TemporaryFolder folder_;
  std::mt19937 random_{1};
  PagePool pool_ = small_pool(2, 12);
  SequenceKv large_{pool_};
  Values want_;
};

TEST_F(ReadFaults, ShortAndInterruptedReadsGoOn) {
  const ReadFault pieces(ReadFault::kPieces);
  expect_paged(large_, want_);
  EXPECT_GT(pieces.count(), 100);
  EXPECT_EQ(pool_.tiers().lost_pages, 0u);
}

TEST_F(ReadFaults, WhatCannotBeReadIsLostAndTheRestIsWhatItWas) {
  for (const ReadFault::Kind kind : ReadFault::failures()) {
    SCOPED_TRACE(kind);
    const uint64_t lost_before = pool_.tiers().lost_pages;
    std::vector<bool> there;
    {
      const ReadFault fault(kind, kind == ReadFault::kShortThenBroken ? 1 : 9);
      for (size_t page = 0; page < 40; ++page) {
        there.push_back(is_there(static_cast<uint32_t>(page / 20), page % 20));
      }
      EXPECT_GT(fault.count(), 0);
    }
    EXPECT_GT(pool_.tiers().lost_pages, lost_before);
    for (size_t page = 0; page < 40; ++page) {  // and stays lost, when the disk works again
      EXPECT_EQ(is_there(static_cast<uint32_t>(page / 20), page % 20), there[page]) << page;
    }
  }
}

}  // namespace
}  // namespace reprise
